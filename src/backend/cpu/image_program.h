// A graph of an image model compiled for the CPU.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/schedule.h"

namespace ringtrain::cpu {

// A compiled image model. It has functions for benchmarks in addition to those of Program.
class ImageProgram : public Program {
 public:
  virtual std::vector<StepCost> costs() const = 0;
  virtual void reset_costs() = 0;
};

// `group`: images that batch norm normalises together. `slots`: micro-batches in flight. Throws Error if `group` is
// neither a divisor nor a multiple of micro_batch.
std::unique_ptr<ImageProgram> compile_image_program(const Graph& graph, std::int64_t micro_batch, std::int64_t group,
                                                    Precision precision, PassMode mode, int threads, Isa isa,
                                                    MemoryCount count, int slots = 1);

// Returns the images per pass for which maps fit into the caches and reading the weights costs little.
std::int64_t preferred_image_batch(const Graph& graph, int threads);

}  // namespace ringtrain::cpu
