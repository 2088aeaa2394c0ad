// y = relu(norm(x) + second): a norm, ReLU and the residual addition in one operation. Each may be absent. The
// second operand may be the result of another norm (the projection of a shortcut). That result is never stored.
#pragma once

#include "backend/cpu/norm_statistics.h"
#include "backend/cpu/operation.h"

namespace ringtrain::cpu {

template <class T>
class NormOperation : public CpuOperation {
 public:
  // A null `norm` leaves x unchanged, and a null `second` adds nothing. A second norm needs a first one. The steps for
  // the statistics of the norms were added when their inputs were made.
  NormOperation(const ImageContext& context, std::string name, Feature* x, NormStatistics* norm, Feature* second,
                NormStatistics* norm2, bool relu, Feature* y);

  void forward_steps() override;
  void backward_steps() override;

 private:
  // Whether y is recomputed. The result of a norm without a second operand is not kept for the backward pass. The
  // backward pass computes it again if the weight gradient of a convolution needs it.
  bool recomputed() const { return norm_ != nullptr && second_ == nullptr; }
  bool has_mask() const { return relu_ && !recomputed(); }
  NormForward<T> forward_unit(const Slice& slice, std::int64_t image, std::int64_t block) const;
  void first_pass(const Slice& slice, const std::vector<int>& sources, int dz, int dz2) const;
  void second_pass(const Slice& slice, int dz, int dx, bool masked) const;

  ImageContext context_;
  std::string name_;
  Feature *x_, *second_, *y_;
  NormStatistics *norm_, *norm2_;
  bool relu_;
  int mask_ = -1, sums_ = -1;
};

}  // namespace ringtrain::cpu
