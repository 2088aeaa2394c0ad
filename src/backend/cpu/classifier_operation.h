// The dense layer at every position, followed by the softmax cross-entropy. In training, the forward pass also computes
// the scaled gradient of the logits. The backward pass starts from that gradient.
#pragma once

#include <memory>

#include "backend/cpu/operation.h"

namespace ringtrain::cpu {

template <class T>
class ClassifierOperation : public CpuOperation {
 public:
  ClassifierOperation(const OperationContext& context, const Dense& node);
  ~ClassifierOperation() override;

  Port input_port() const;  // valid after plan()
  std::vector<float> logits(std::int64_t row, std::int64_t position) const;

  void plan(ArenaPlan& arena, int forward, int backward) override;
  void bind(const Arena& arena) override;
  void set_weights(const float* flat) override;
  void forward(Pass& pass) override;
  void backward(const Pass& pass, float* gradients, bool accumulate, const std::function<void()>& poll) override;
  std::int64_t gradient_end() const override;

 private:
  struct State;
  std::unique_ptr<State> s_;
};

}  // namespace ringtrain::cpu
