// y = relu(norm(x) + second): batch norm, ReLU and the residual addition in one operation, any of them absent. The
// second operand may be a batch norm of its own (the projection of a block's shortcut), never written as such.
#pragma once

#include "backend/cpu/batch_statistics.h"
#include "backend/cpu/image_operation.h"

namespace ringtrain::cpu {

template <class T>
class NormOperation : public ImageOperation {
 public:
  // Null norm: x as it is; null second: none; a second norm needs the first. The norms' statistics steps were added
  // when their inputs were made.
  NormOperation(const ImageContext& context, std::string name, Feature* x, BatchStatistics* norm, Feature* second,
                BatchStatistics* norm2, bool relu, Feature* y);

  void forward_steps() override;
  void backward_steps() override;

 private:
  // relu(norm(x)) is made again where a convolution's weight gradient needs it, instead of being kept.
  bool recomputed() const { return norm_ != nullptr && second_ == nullptr; }
  bool has_mask() const { return relu_ && !recomputed(); }
  NormForward<T> forward_unit(const Slice& slice, std::int64_t image, std::int64_t block) const;
  void first_pass(const Slice& slice, const std::vector<int>& sources, int dz, int dz2) const;
  void second_pass(const Slice& slice, int dz, int dx, bool masked) const;

  ImageContext context_;
  std::string name_;
  Feature *x_, *second_, *y_;
  BatchStatistics *norm_, *norm2_;
  bool relu_;
  int mask_ = -1, sums_ = -1;
};

}  // namespace ringtrain::cpu
