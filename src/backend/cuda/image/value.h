// The first phase of compiling a model for images records the values between layers. graph.cpp makes these records in
// the order of the graph, and the constructors of the layers add which layers make and read each value. Afterwards no
// code changes them.
#pragma once

#include <map>
#include <string>

#include "backend/cuda/types.h"
#include "nn/graph.h"

namespace ringtrain::cuda {

class NormLayer;
class NormStatistics;
class ImageLayer;

// A value of the graph has [samples][height x width][width] elements, where the last `width` is the member below.
struct Value {
  std::string name;
  FeatureShape shape;
  // Channels in memory, a multiple of 8 (of 4 for pixels without windows). The last ones are padding and zero.
  std::int64_t width = 0;
  Type type = Type::fp32;
  bool needs_gradient = true;  // false for pixels
  bool windows = false;        // pixels: the values are windows (see ImageWindows)

  // These are the layers that make and read the value.
  int readers = 0;
  const ImageLayer* first_reader = nullptr;    // in the backward pass the last layer to send its gradient
  const NormLayer* norm = nullptr;             // the layer that makes the value, if it is a norm with a ReLU
  const NormStatistics* statistics = nullptr;  // the norm that reads the value; null: none

  std::int64_t pixels() const { return shape.height * shape.width; }
  std::int64_t elements() const { return pixels() * width; }  // in one sample
};

// Holds what a later phase records about values, norms or layers. An object without a record has T{}.
template <class Part, class T>
class NotesOf {
 public:
  T& operator[](const Part& part) { return all_[&part]; }
  const T& operator[](const Part& part) const {
    static const T nothing{};
    const auto found = all_.find(&part);
    return found == all_.end() ? nothing : found->second;
  }

 private:
  std::map<const Part*, T> all_;
};

}  // namespace ringtrain::cuda
