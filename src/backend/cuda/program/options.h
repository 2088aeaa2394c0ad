// What the programs of a device are compiled with.
#pragma once

#include <cstdint>
#include <functional>

#include "backend/cuda/program/fusion.h"

namespace ringtrain::cuda {

struct BackendOptions {
  bool graphs = true;                                  // capture segments and replay them
  std::int64_t segment_elements = 0;                   // of the flat vector: where segments end; 0: one segment
  std::int64_t least_offload = std::int64_t{1} << 20;  // bytes of what memory.offload moves
  FusionTable* fusions = nullptr;                      // filled by compile(); null: a table of its own
  // Memory for vectors that are reduced over ranks (registered with NCCL); empty: the device's own. `release` undoes
  // it.
  std::function<void*(std::int64_t bytes)> allocate_reduced = {};
  std::function<void(void*)> release_reduced = {};
  std::function<void()> poll = {};  // called while the host waits for the device: lets errors of others show
};

}  // namespace ringtrain::cuda
