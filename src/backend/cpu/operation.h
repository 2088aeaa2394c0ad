// The operations of a program, for images and for text: nodes of the graph that run as one. An operation adds its steps
// to the schedule, which plans their memory and runs them. image_operations.cpp and sequence_operations.cpp choose the
// operations of a graph.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/image_kernels.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/norm_kernels.h"
#include "backend/cpu/schedule.h"
#include "nn/graph.h"

namespace ringtrain::cpu {

// What a graph is compiled for.
struct CompileOptions {
  std::int64_t micro_batch = 0;
  std::int64_t group = 0;  // images that batch norm normalises together
  Precision precision = Precision::fp32;
  PassMode mode = PassMode::training;
  int threads = 1;
  Isa isa = Isa::baseline;
  int slots = 1;  // micro-batches in flight
};

// A value of the graph and its memory.
//   maps       [blocks][height x width][lanes] per sample; channels beyond the last one are zero
//   vectors    [channels] per sample; gradients in fp32
//   sequences  [row blocks][time][rows of a block][row_elements] of all samples (RowBlocks); gradients in fp32
struct Feature {
  FeatureShape shape;
  bool vector = false;
  bool read_again = false;        // a convolution needs the value for its weight gradient
  std::int64_t row_elements = 0;  // of a sequence: elements from one row to the next, also of its gradient
  int forward = -1;               // storage of the values in the forward pass
  int backward = -1;              // storage of the same values in the backward pass; it differs if they are recomputed
  // Storages of gradients. The backward step of each consumer writes one. The operation that made the feature reads
  // them, and may overwrite them.
  std::vector<int> gradients = {};

  std::int64_t pixels() const { return shape.height * shape.width; }
};

// The arguments and the sums of the current pass.
struct Pass {
  PassInput input = {};
  PassContext context = {};
  PartTraffic traffic = {};
  LossSums sums = {};
  float* gradients = nullptr;
  bool accumulate = false;
  std::function<void()> poll = {};  // see BackwardHooks; empty in a forward pass
};

// What all operations of a program share. The program owns it.
struct OperationContext {
  Schedule* schedule = nullptr;
  const ParameterTable* parameters = nullptr;
  const Kernels* kernels = nullptr;
  Pass* pass = nullptr;
  bool training = true;
};

class CpuOperation {
 public:
  virtual ~CpuOperation() = default;
  virtual void forward_steps() = 0;
  virtual void backward_steps() = 0;  // called in reverse order
  virtual void bind() {}              // called after the memory was allocated
  virtual void set_weights(const float*) {}
  // Copies the statistics of batch norm that a pass in statistics mode has measured into a vector that begins at
  // element `begin` of the flat weight vector.
  virtual void copy_statistics(std::span<float>, std::int64_t begin) const { static_cast<void>(begin); }
  // The loss returns the logits [classes] of a row and position. Called after a forward pass in inference mode.
  virtual std::vector<float> logits(std::int64_t row, std::int64_t position) const {
    static_cast<void>(row + position);
    return {};
  }
};

// The operations of a program, with the values between them.
struct Operations {
  std::vector<std::unique_ptr<CpuOperation>> all;  // in order of execution; the last one is the loss, or ends the part
  std::vector<int> blocks;                         // block of each operation (Schedule::enter()); -1: not recomputed
  std::vector<std::unique_ptr<Feature>> features;
  PartBytes bytes;

  template <class Made>
  Made* add(std::unique_ptr<Made> operation, int block = -1) {
    Made* made = operation.get();
    all.push_back(std::move(operation));
    blocks.push_back(block);
    return made;
  }
  Feature* make_feature(const FeatureShape& shape) {
    features.push_back(std::make_unique<Feature>(Feature{.shape = shape}));
    return features.back().get();
  }
};

// Turns the graph of an image model into operations. Joins neighbouring nodes that can run as one operation. A ReLU
// joins the convolution, dense layer, norm or addition before it. An addition also joins the norms before it. A node
// that other nodes read too does not join. Each remaining node becomes an operation of its own. Throws Error for graphs
// that cannot be compiled, and if options.group is neither a divisor nor a multiple of the micro-batch.
Operations image_operations(const Graph& graph, const CompileOptions& options, const OperationContext& context);

// Turns the graph of a model of sequences into operations. Dropout is part of the layer before it. The loss is part of
// the dense layer. A part of a model may begin with PartInput instead of the symbols, and end with PartOutput instead
// of the dense layer. Throws Error for graphs that cannot be compiled.
Operations sequence_operations(const Graph& graph, const CompileOptions& options, const OperationContext& context);

// What the operations on images share: the layout of maps, the kernels, and loops over images.

struct ImageContext : OperationContext {
  const NormKernels* norm = nullptr;
  const ImageKernels* image = nullptr;
  bool measures = true;    // batch norm uses the statistics of the pass, not the running ones
  std::int64_t group = 0;  // images of this rank that batch norm normalises together
  std::int64_t span = 1;   // ranks that share a group, each with `group` images

  std::int64_t lanes() const { return norm->lanes; }
  std::int64_t blocks(const Feature& f) const { return (f.shape.channels + lanes() - 1) / lanes(); }
  std::int64_t padded_channels(const Feature& f) const { return blocks(f) * lanes(); }
  template <class T>
  std::int64_t bytes(const Feature& f) const {
    return static_cast<std::int64_t>(sizeof(T)) * (f.vector ? f.shape.size() : padded_channels(f) * f.pixels());
  }
};

// Calls body(image, block) for all images of the slice and all blocks of channels. Each thread gets a fixed, contiguous
// share.
template <class Body>
void for_each_unit(int threads, const Slice& slice, std::int64_t blocks, const Body& body) {
  const std::int64_t units = slice.count * blocks;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t u = 0; u < units; ++u) body(slice.first + u / blocks, u % blocks);
}

// What the operations on sequences share: the layout of a micro-batch of sequences, and loops over it.

// The layout of a micro-batch in memory. Rows are cut into blocks. One thread works on a block and all its time steps,
// so that the block's values stay in the second-level cache of that core.
//   activations: [blocks][time][block_rows][features]
struct RowBlocks {
  std::int64_t rows = 0;  // rows of the micro-batch
  std::int64_t blocks = 0;
  std::int64_t block_rows = 0;  // blocks x block_rows >= rows; the rest is padding that no target counts
  std::int64_t sequence = 0;
  int threads = 1;
  std::int64_t padded_rows() const { return blocks * block_rows; }
  std::int64_t positions() const { return padded_rows() * sequence; }  // rows of the weight-gradient products
};

struct SequenceContext : OperationContext {
  RowBlocks blocks;

  template <class Element>
  Element* memory(int storage, std::int64_t offset = 0) const {
    return schedule->at<Element>(storage) + offset;
  }
};

// Calls `body(block, thread)` for every block. Each thread gets a fixed, contiguous share.
template <class Body>
void for_each_block(const RowBlocks& blocks, const Body& body) {
#pragma omp parallel num_threads(blocks.threads)
  {
    const int thread = omp_get_thread_num();
#pragma omp for schedule(static)
    for (std::int64_t block = 0; block < blocks.blocks; ++block) body(block, thread);
  }
}

// Copies a block's rows of [rows][sequence] values to [padded rows][sequence]. Rows of padding get the value `padding`.
template <class Element>
void copy_rows(const RowBlocks& blocks, std::int64_t block, const Element* from, Element padding, Element* to) {
  const std::int64_t size = blocks.block_rows * blocks.sequence, begin = block * size;
  const std::int64_t given = std::clamp<std::int64_t>(blocks.rows * blocks.sequence - begin, 0, size);
  if (given > 0) std::copy_n(from + begin, given, to + begin);
  std::fill_n(to + begin + given, size - given, padding);
}

// to = from, or to += from.
inline void store_gradient(const Kernels& kernels, std::int64_t n, const float* from, float* to, bool accumulate) {
  if (accumulate)
    kernels.add(n, from, to);
  else
    for (std::int64_t i = 0; i < n; ++i) to[i] = from[i];
}

}  // namespace ringtrain::cpu
