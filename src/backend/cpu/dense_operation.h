// The head of an image model: dense layers with ReLU, dropout between them, and the softmax cross-entropy.
#pragma once

#include "backend/cpu/gemm.h"
#include "backend/cpu/operation.h"

namespace ringtrain::cpu {

// The output is [images, output] in T, or in fp32 if the loss reads it.
template <class T>
class DenseOperation : public CpuOperation {
 public:
  DenseOperation(const ImageContext& context, const Dense& node, bool relu, bool logits, Feature* x, Feature* y);
  void forward_steps() override;
  void backward_steps() override;
  void bind() override;
  void set_weights(const float* flat) override;

 private:
  void forward() const;
  void backward(int gradient, int target);

  ImageContext context_;
  Parameter weight_, bias_;
  std::int64_t images_, input_, output_;
  bool relu_, logits_;
  Feature *x_, *y_;
  mutable Gemm product_;
  Gemm input_product_, weight_product_, weight_product_added_;
  int products_ = -1, converted_ = -1, packed_ = -1, packed_backward_ = -1, own_bias_ = -1, scratch_ = -1;
  std::string name_;
};

// Dropout on a vector or on a map of one pixel. The backward pass works in place. The mask depends on the sample's
// position in the global batch, as in nn/dropout.h.
template <class T>
class DropoutOperation : public CpuOperation {
 public:
  DropoutOperation(const ImageContext& context, const Dropout& node, Feature* x, Feature* y);
  void forward_steps() override;
  void backward_steps() override;

 private:
  template <class Value>
  void drop_gradient(const Slice& slice, int gradient) const;

  ImageContext context_;
  Dropout node_;
  Feature *x_, *y_;
  std::uint32_t threshold_;
  int mask_ = -1;
};

class LossOperation : public CpuOperation {
 public:
  LossOperation(const ImageContext& context, const CrossEntropy& node, Feature* logits);
  void forward_steps() override;
  void backward_steps() override;
  std::vector<float> logits(std::int64_t row, std::int64_t position) const override;

 private:
  ImageContext context_;
  CrossEntropy node_;
  Feature* logits_;
};

}  // namespace ringtrain::cpu
