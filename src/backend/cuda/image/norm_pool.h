// NormPool computes batch norm, ReLU and max pooling in one kernel, as in the stem of ResNet. The norm's result is not
// stored in either pass.
#pragma once

#include "backend/cuda/image/emission.h"
#include "nn/graph.h"

namespace ringtrain::cuda {

// Computes y = max pooling of x = relu(norm(input)).
class NormPool {
 public:
  NormPool(const ImageContext& context, const MaxPool& node, const Value& x, const Value& y)
      : c_(context), node_(node), x_(x), y_(y) {}

  // Returns whether norm and pooling can be fused. No other layer may read x.
  bool possible() const;
  // Returns the choice between fused and separate; the first way is fused. Bytes of traffic decide, nothing is timed.
  FusionSite site() const;
  // Writes y and, in training, the place of each window's maximum.
  void forward(Emission& e) const;
  // Computes the gradient of the norm's input and the gradients of gamma and beta from the gradient of y.
  void backward(Emission& e) const;

 private:
  PoolWindow window() const;

  const ImageContext& c_;
  MaxPool node_;
  const Value &x_, &y_;
};

}  // namespace ringtrain::cuda
