// BackendOptions holds the options with which programs for a device are compiled.
#pragma once

#include <cstdint>
#include <functional>

#include "backend/backend.h"
#include "backend/cuda/program/fusion.h"

namespace ringtrain::cuda {

struct BackendOptions {
  bool graphs = true;                                  // capture segments and replay them
  std::int64_t segment_elements = 0;  // elements of the flat vector between ends of segments; 0: one segment
  std::int64_t least_offload = std::int64_t{1} << 20;  // bytes; memory.offload moves no smaller activation
  FusionTable* fusions = nullptr;                      // compile() fills it; null: the backend has a table of its own
  ReducedMemory reduced = {};                          // registered with NCCL
  std::function<void()> poll = {};  // called while the host waits for the device; reports errors of other ranks
};

}  // namespace ringtrain::cuda
