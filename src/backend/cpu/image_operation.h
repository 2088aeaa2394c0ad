// An operation of an image program: nodes of the graph that run as one. It adds its steps to the schedule.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/image_kernels.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/norm_kernels.h"
#include "backend/cpu/schedule.h"
#include "nn/graph.h"

namespace ringtrain::cpu {

// A value of the graph and its memory. Maps are [blocks][height x width][lanes] per image; channels beyond the last one
// are zero. Vectors are [channels] per image, with gradients in fp32.
struct Feature {
  FeatureShape shape;
  bool vector = false;
  bool read_again = false;  // a convolution needs the value for its weight gradient
  int forward = -1;         // storage of the values in the forward pass (Schedule::per_image())
  int backward = -1;        // storage of the same values in the backward pass; it differs if they are recomputed
  // Storages of gradients. The backward step of each consumer writes one. The operation that made the feature reads
  // them, and may overwrite them.
  std::vector<int> gradients = {};

  std::int64_t pixels() const { return shape.height * shape.width; }
};

// The arguments and the sums of the current pass.
struct ImagePass {
  PassInput input = {};
  PassContext context = {};
  PartTraffic traffic = {};
  LossSums sums = {};
  float* gradients = nullptr;
  bool accumulate = false;
  std::function<void()> poll = {};  // see BackwardHooks; empty in a forward pass
};

struct ImageContext {
  Schedule* schedule = nullptr;
  const ParameterTable* parameters = nullptr;
  const Kernels* kernels = nullptr;
  const NormKernels* norm = nullptr;
  const ImageKernels* image = nullptr;
  ImagePass* pass = nullptr;
  bool training = true;
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

class ImageOperation {
 public:
  virtual ~ImageOperation() = default;
  virtual void forward_steps() = 0;
  virtual void backward_steps() = 0;  // called in reverse order
  virtual void bind() {}              // called after the memory was allocated
  virtual void set_weights(const float*) {}
};

// Calls body(image, block) for all images of the slice and all blocks of channels. Each thread gets a fixed, contiguous
// share.
template <class Body>
void for_each_unit(int threads, const Slice& slice, std::int64_t blocks, const Body& body) {
  const std::int64_t units = slice.count * blocks;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t u = 0; u < units; ++u) body(slice.first + u / blocks, u % blocks);
}

}  // namespace ringtrain::cpu
