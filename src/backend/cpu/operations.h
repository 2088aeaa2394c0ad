// The operations of a program, for images and for text: nodes of the graph that run as one. An operation adds its steps
// to the schedule, which plans their memory and runs them. operations.cpp chooses the operations of a graph; each kind
// has its own file, such as pool_operation.cpp.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/processor.h"
#include "backend/cpu/schedule.h"
#include "nn/graph.h"

namespace ringtrain::cpu {

class NormStatistics;

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
  bool read_again = false;  // a convolution needs the value for its weight gradient
  // Pixels only, set by the convolution that reads them: channel c of pixel p is at p * pixel_stride +
  // c * channel_stride.
  std::int64_t pixel_stride = 0, channel_stride = 0;
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
  bool bf16 = false;  // type of activations and weights; otherwise fp32
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
  virtual void copy_statistics(std::span<float>, std::int64_t /*begin*/) const {}
  // The loss returns the logits [classes] of a row and position. Called after a forward pass in inference mode.
  virtual std::vector<float> logits(std::int64_t /*row*/, std::int64_t /*position*/) const { return {}; }
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

// Turns the graph of a model into operations. Throws Error for graphs that cannot be compiled.
//
// Images: joins neighbouring nodes that can run as one operation. A ReLU joins the convolution, dense layer, norm or
// addition before it. An addition also joins the norms before it. A node that other nodes read too does not join. Each
// remaining node becomes an operation of its own. Throws Error, too, if options.group is neither a divisor nor a
// multiple of the micro-batch.
//
// Sequences: dropout is part of the layer before it. The loss is part of the dense layer. A part of a model may begin
// with PartInput instead of the symbols, and end with PartOutput instead of the dense layer.
Operations make_operations(const Graph& graph, const CompileOptions& options, const OperationContext& context);

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

// Makes Operation<BFloat16> or Operation<float>.
template <template <class> class Operation, class Context, class... Arguments>
std::unique_ptr<CpuOperation> make_typed(const Context& context, const Arguments&... arguments) {
  if (context.bf16) return std::make_unique<Operation<BFloat16>>(context, arguments...);
  return std::make_unique<Operation<float>>(context, arguments...);
}

// The kinds of operations. x is the value that an operation reads, and y the one that it makes.

// Normalises the pixels of the image and writes them in the layout of the first convolution.
std::unique_ptr<CpuOperation> make_pixels(const ImageContext& context, const ImageInput& node, Feature* y);

// Computes a convolution and the ReLU that follows it directly, if there is one. `pixels`: x is the image.
// `behind_norm`: a norm comes before this convolution. Its backward sums are computed slice by slice after this
// convolution's data gradient. The weight gradient needs the whole micro-batch, so it then waits for the next cut.
std::unique_ptr<CpuOperation> make_convolution(const ImageContext& context, const Convolution& node, bool relu,
                                               bool pixels, bool behind_norm, Feature* x, Feature* y);

// y = relu(norm(x) + second): a norm, ReLU and the residual addition in one operation. Each may be absent. A null
// `norm` leaves x unchanged, and a null `second` adds nothing. The second operand may be the result of another norm
// (the projection of a shortcut). That result is never stored. A second norm needs a first one. The norms' own
// operations, which measure the statistics, come before (norm_statistics.h).
std::unique_ptr<CpuOperation> make_norm(const ImageContext& context, const std::string& name, Feature* x,
                                        NormStatistics* norm, Feature* second, NormStatistics* norm2, bool relu,
                                        Feature* y);

std::unique_ptr<CpuOperation> make_max_pool(const ImageContext& context, const MaxPool& node, Feature* x, Feature* y);
// Makes a vector of maps by global average pooling, or by flattening in the order of PyTorch: channel, row, column.
std::unique_ptr<CpuOperation> make_vector(const ImageContext& context, bool average, Feature* x, Feature* y);

// A dense layer with ReLU of an image model. The output is [images, output] in T, or in fp32 if the loss reads it.
std::unique_ptr<CpuOperation> make_dense(const ImageContext& context, const Dense& node, bool relu, bool logits,
                                         Feature* x, Feature* y);
// Dropout on a vector or on a map of one pixel. The backward pass works in place. The mask depends on the sample's
// position in the global batch, as in nn/math.h.
std::unique_ptr<CpuOperation> make_dropout(const ImageContext& context, const Dropout& node, Feature* x, Feature* y);
// The softmax cross-entropy of an image model.
std::unique_ptr<CpuOperation> make_loss(const ImageContext& context, const CrossEntropy& node, Feature* logits);

// A layer's part of the carried state (PassContext::state).
struct StatePlace {
  std::int64_t layer = 0, layers = 1;  // its number, and that of all LSTM layers
};
// An LSTM layer, followed by dropout.
struct LstmLayer {
  Lstm node;
  Dropout dropout = {};     // probability 0: none
  bool recomputed = false;  // whether the backward step computes gates, cells and masks again
  StatePlace place = {};
  Feature* x = nullptr;  // null: the layer reads the symbols of the pass
  Feature* y = nullptr;  // h is written here
};
// The layer makes the memory of x, because it owns [x | h].
std::unique_ptr<CpuOperation> make_lstm(const SequenceContext& context, const LstmLayer& layer);
// The dense layer at every position, followed by the softmax cross-entropy. Makes the memory of x.
std::unique_ptr<CpuOperation> make_classifier(const SequenceContext& context, const Dense& node, Feature* x);

// The two ends of a part of a model, which exchange values with the ranks that have the other parts. They set the bytes
// of their exchanges in `bytes`. Values travel between ranks in a canonical layout. It depends neither on the vector
// length of the CPUs nor on the row blocks of their threads:
//   images      [images, channels, height, width] of type T. Gradients of vectors are fp32.
//   sequences   [rows, time, features] of type T. Gradients are fp32.

// Receives the activations. Sends the sum of the gradients that all consumers of the activations computed.
std::unique_ptr<CpuOperation> make_part_input(const ImageContext& context, Feature* y, PartBytes& bytes);
std::unique_ptr<CpuOperation> make_part_input(const SequenceContext& context, Feature* y, PartBytes& bytes);
// Sends the activations. Receives their gradient.
std::unique_ptr<CpuOperation> make_part_output(const ImageContext& context, Feature* x, PartBytes& bytes);
std::unique_ptr<CpuOperation> make_part_output(const SequenceContext& context, Feature* x, PartBytes& bytes);

}  // namespace ringtrain::cpu
