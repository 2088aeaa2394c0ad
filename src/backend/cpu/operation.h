// The operations of a program, for images and for text: nodes of the graph that run as one. An operation adds its steps
// to the schedule, which plans their memory and runs them. image_operations.h and sequence_operations.h choose the
// operations of a graph.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kernels.h"
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
//   sequences  [row blocks][time][rows of a block][row_elements] of all samples (sequence_context.h); gradients in fp32
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

}  // namespace ringtrain::cpu
