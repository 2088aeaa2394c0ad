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

// Returns the instruction set for the graph's maps in fp32. It is `best`, or AVX2 in place of AVX-512 if a convolution
// reads a map of fewer than 16 channels. With AVX-512 the channels are stored in blocks of 16, for which oneDNN
// computes such a convolution without generated code, which takes about a hundred times as long. AVX2 has blocks of 8.
Isa isa_of_maps(const Graph& graph, Isa best);

// `group`: images that batch norm normalises together. `slots`: micro-batches in flight. Throws Error if `group` is
// neither a divisor nor a multiple of micro_batch.
std::unique_ptr<ImageProgram> compile_image_program(const Graph& graph, std::int64_t micro_batch, std::int64_t group,
                                                    Precision precision, PassMode mode, int threads, Isa isa,
                                                    MemoryCount count, int slots = 1);

// Returns the images per pass for which maps fit into the caches and reading the weights costs little.
std::int64_t preferred_image_batch(const Graph& graph, int threads);

}  // namespace ringtrain::cpu
