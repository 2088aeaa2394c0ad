// An LSTM layer, followed by dropout.
//
// The forward pass works on a block of rows and a time step at a time. It computes the matrix product [x_t | h_t-1]
// [W_ih | W_hh]^T, and then gates, cell and dropout in one pass over its result. That pass writes h into the inputs of
// the next time step and of the next layer. The backward pass computes the gradients of the gates, in place of the
// gates, and then one product with [W_ih | W_hh] for the gradients of x_t and h_t-1 together. The gradient of the
// weights is a product over all positions of the micro-batch, which is computed for a few blocks of rows at a time. A
// one-hot input needs no product: the forward pass adds a row of W_ih^T per symbol, and the backward pass sums gradient
// rows by symbol.
//
// A recomputed layer keeps [x | h] and the first c. The backward pass repeats the products and computes gates, cells
// and masks again, one block of rows after the other.
#pragma once

#include <memory>

#include "backend/cpu/operation.h"

namespace ringtrain::cpu {

// The layer makes the port of its input, because it owns [x | h]. h is written to `output`.
template <class T>
class LstmOperation : public CpuOperation {
 public:
  LstmOperation(const OperationContext& context, const Lstm& node, bool one_hot, const Dropout* dropout,
                bool recomputed);
  ~LstmOperation() override;

  Port input_port() const;  // valid after plan()
  void set_output(const Port& output);
  // Sets which part of the carried state is this layer's: the layer is number `index` of `count` LSTM layers.
  void set_state_place(std::int64_t index, std::int64_t count);

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
