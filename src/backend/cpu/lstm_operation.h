// An LSTM layer, followed by dropout.
//
// Forward, per block of rows and per time step: one matrix product [x_t | h_t-1] [W_ih | W_hh]^T, then one pass over
// its result (gates, cell, dropout) that writes h into the next time step's and the next layer's input. Backward: one
// pass (gates' gradient, in place of the gates), then one product with [W_ih | W_hh] that gives the gradients of x_t
// and h_t-1 together. The weights' gradient is one product over all positions of the micro-batch. A one-hot input is no
// product: forward adds a row of W_ih^T per symbol, backward sums gradient rows by symbol.
//
// A recomputed layer keeps [x | h] and the first c. Gates, cells and masks are made again in the backward pass, block
// by block of rows, from the same products.
#pragma once

#include <memory>

#include "backend/cpu/operation.h"

namespace ringtrain::cpu {

// The input's port is made by the layer (it owns [x | h]); `output` is where h goes.
template <class T>
class LstmOperation : public CpuOperation {
 public:
  LstmOperation(const OperationContext& context, const Lstm& node, bool one_hot, const Dropout* dropout,
                bool recomputed);
  ~LstmOperation() override;

  Port input_port() const;  // after plan()
  void set_output(const Port& output);
  // `index`-th of `count` LSTM layers: where its part of the carried state lies.
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
