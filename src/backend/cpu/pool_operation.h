// Max pooling, global average pooling, and the conversion of maps to vectors.
#pragma once

#include "backend/cpu/operation.h"

namespace ringtrain::cpu {

template <class T>
class MaxPoolOperation : public CpuOperation {
 public:
  MaxPoolOperation(const ImageContext& context, const MaxPool& node, Feature* x, Feature* y);
  void forward_steps() override;
  void backward_steps() override;

 private:
  MaxPoolUnit<T> unit(const Slice& slice, std::int64_t image, std::int64_t block) const;

  ImageContext context_;
  MaxPool node_;
  Feature *x_, *y_;
  int place_ = -1;
};

// Global average pooling, or flattening in the order of PyTorch: channel, row, column.
template <class T>
class VectorOperation : public CpuOperation {
 public:
  VectorOperation(const ImageContext& context, bool average, Feature* x, Feature* y);
  void forward_steps() override;
  void backward_steps() override;

 private:
  // The number of channels that exist in a block, and the number of values that a channel gives to the vector.
  std::int64_t channels(std::int64_t block) const;
  std::int64_t values() const { return average_ ? 1 : x_->pixels(); }

  ImageContext context_;
  bool average_;
  Feature *x_, *y_;
};

}  // namespace ringtrain::cpu
