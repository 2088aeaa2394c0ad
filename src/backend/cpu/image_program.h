// A graph of an image model compiled for the CPU.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/dense_operation.h"
#include "backend/cpu/image_operation.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/norm_statistics.h"
#include "backend/cpu/schedule.h"

namespace ringtrain::cpu {

// Turns the graph of an image model into operations. Joins neighbouring nodes that can run as one operation.
struct ImageOperations {
  std::vector<std::unique_ptr<ImageOperation>> operations;  // in order of execution
  std::vector<int> blocks;                                  // block of each operation; -1: not recomputed
  std::vector<std::unique_ptr<NormStatistics>> norms;
  std::vector<std::unique_ptr<Feature>> features;
  const LossOperation* loss = nullptr;  // null: the loss is in another part of the model
  PartBytes bytes;
};

// A ReLU joins the convolution, dense layer, norm or addition before it. An addition also joins the norms before
// it. A node that other nodes read too does not join. Each remaining node becomes an operation of its own.
// Throws Error for graphs that cannot be compiled.
template <class T>
ImageOperations join_operations(const Graph& graph, const ImageContext& context);

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
