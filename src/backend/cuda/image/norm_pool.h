// Batch norm, ReLU and max pooling in one, as in the stem of ResNet: the norm's result is not stored, forward or
// backward.
#pragma once

#include "backend/cuda/image/emission.h"
#include "nn/graph.h"

namespace ringtrain::cuda {

// y = max pooling of x = relu(norm(input)).
class NormPool {
 public:
  NormPool(const ImageContext& context, const MaxPool& node, const Value& x, const Value& y)
      : c_(context), node_(node), x_(x), y_(y) {}

  // Whether the two can be joined: where nobody else reads x.
  bool possible() const;
  // Joined or not, by the bytes that it saves: the first way is to join.
  FusionSite site() const;
  // Writes y and, in training, the places of the winners.
  void forward(Emission& e) const;
  // From the gradient of y to that of the norm's input, and those of gamma and beta.
  void backward(Emission& e) const;

 private:
  PoolWindow window() const;

  const ImageContext& c_;
  MaxPool node_;
  const Value &x_, &y_;
};

}  // namespace ringtrain::cuda
