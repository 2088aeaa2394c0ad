// First phase: what the graph says of the values between layers. The constructors of the layers write it, in the order
// of the graph; afterwards nobody does.
#pragma once

#include <map>
#include <string>

#include "backend/cuda/types.h"
#include "nn/graph.h"

namespace ringtrain::cuda {

class NormLayer;
class NormStatistics;
class ImageLayer;

// A value of the graph: [samples][height x width][width] elements.
struct Value {
  std::string name;
  FeatureShape shape;
  std::int64_t width = 0;  // channels in memory, the last ones zero: a multiple of 8 (pixels: 4)
  Type type = Type::fp32;
  bool needs_gradient = true;  // false: pixels

  // Who makes it and who reads it.
  int readers = 0;
  const ImageLayer* first_reader = nullptr;    // the last one to send its gradient
  const NormLayer* norm = nullptr;             // its maker, when that is a norm with a ReLU behind it
  const NormStatistics* statistics = nullptr;  // its only reader, when that is a norm

  std::int64_t pixels() const { return shape.height * shape.width; }
  std::int64_t elements() const { return pixels() * width; }  // of a sample
};

// What a later phase notes of values, norms or layers. Of what it has noted nothing, T{} holds.
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
