// The dense layer at every position, followed by the softmax cross-entropy. In training, the forward pass also computes
// the scaled gradient of the logits. The backward pass starts from that gradient.
#pragma once

#include <string>

#include "backend/cpu/gemm.h"
#include "backend/cpu/operation.h"

namespace ringtrain::cpu {

template <class T>
class ClassifierOperation : public CpuOperation {
 public:
  // Makes the memory of x.
  ClassifierOperation(const SequenceContext& context, const Dense& node, Feature* x);
  void forward_steps() override;
  void backward_steps() override;
  void bind() override;
  void set_weights(const float* flat) override;
  std::vector<float> logits(std::int64_t row, std::int64_t position) const override;

 private:
  void make_products();
  void make_storages();
  std::int64_t block_positions() const { return blocks_.block_rows * blocks_.sequence; }
  void forward();
  void backward();

  SequenceContext context_;
  RowBlocks blocks_;
  Feature* x_;
  std::int64_t hidden_, classes_, width_;  // width: classes rounded up to a multiple of 16
  Parameter weight_, bias_;
  std::string name_;
  Gemm forward_product_, backward_product_, weight_product_;
  int input_ = -1, input_gradient_ = -1, targets_ = -1, logits_ = -1, d_logits_ = -1, d_bias_ = -1,
      weight_gradient_ = -1;
  int padded_ = -1, padded_bias_ = -1, packed_forward_ = -1, packed_backward_ = -1, scratch_ = -1;
};

}  // namespace ringtrain::cpu
