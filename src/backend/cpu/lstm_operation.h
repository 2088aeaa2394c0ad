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
// A recomputed layer keeps [x | h] and the first c. The backward step repeats the products and computes gates, cells
// and masks again, one block of rows after the other. The layer does this by itself: if the schedule repeated the
// forward step, cells and masks of all blocks would be in memory at once.
#pragma once

#include <array>
#include <string>

#include "backend/cpu/gemm.h"
#include "backend/cpu/operation.h"

namespace ringtrain::cpu {

// A layer's part of the carried state (PassContext::state).
struct StatePlace {
  std::int64_t layer = 0, layers = 1;  // its number, and that of all LSTM layers
};

template <class T>
class LstmOperation : public CpuOperation {
 public:
  // Without an x, the layer reads the symbols of the pass. A null `dropout` drops nothing. The layer makes the memory
  // of x, because it owns [x | h]. h is written to y.
  LstmOperation(const SequenceContext& context, const Lstm& node, const Dropout* dropout, bool recomputed,
                StatePlace place, Feature* x, Feature* y);
  void forward_steps() override;
  void backward_steps() override;
  void bind() override;
  void set_weights(const float* flat) override;

 private:
  // The storages where a run over the time steps puts its values for the backward step.
  struct Trace {
    int cell = -1, mask = -1;
    int gates = -1;                               // of all blocks; -1: not kept
    int products = -1, one_step = -1;             // working space of the run
    std::int64_t cell_slots = 0, mask_slots = 0;  // number of time steps that fit
    bool by_thread = false;                       // cell and mask hold one block per thread instead of all blocks
  };
  // A product whose right factor is the weights, in the layout that oneDNN prefers.
  struct Product {
    Gemm gemm;
    int packed = -1;  // storage
  };
  std::array<Product*, 4> products() {
    return {&forward_product_, &first_forward_, &backward_product_, &first_backward_};
  }

  void make_products();
  void make_storages();
  Trace make_trace(const std::string& suffix, bool all_steps, bool by_thread) const;

  std::int64_t x_columns() const { return columns_ - hidden_; }
  std::int64_t bias_rows() const { return one_hot_ ? symbols_ : 1; }
  // Returns the element offset of (block, time) in a buffer: `features` per row, `slots` time steps per block.
  std::int64_t at(std::int64_t block, std::int64_t time, std::int64_t features, std::int64_t slots) const {
    return (block * slots + time) * blocks_.block_rows * features;
  }
  // Returns [x | h] of a time step.
  T* input_at(std::int64_t block, std::int64_t time) const {
    return context_.memory<T>(input_, at(block, time, columns_, blocks_.sequence));
  }
  // Returns c before time step `time`.
  float* cell_at(const Trace& trace, std::int64_t block, std::int64_t thread, std::int64_t time) const {
    return context_.memory<float>(
        trace.cell, at(trace.by_thread ? thread : block, time % trace.cell_slots, hidden_, trace.cell_slots));
  }
  std::uint8_t* mask_at(const Trace& trace, std::int64_t block, std::int64_t thread, std::int64_t time) const {
    if (drop_ == 0) return nullptr;
    return context_.memory<std::uint8_t>(
        trace.mask, at(trace.by_thread ? thread : block, time % trace.mask_slots, hidden_, trace.mask_slots));
  }
  T* gates_at(const Trace& trace, std::int64_t block, std::int64_t time) const {
    return trace.gates < 0 ? nullptr : context_.memory<T>(trace.gates, at(block, time, 4 * hidden_, blocks_.sequence));
  }
  float* carried(std::int64_t row, int which) const {
    return context_.pass->context.state + ((row * place_.layers + place_.layer) * 2 + which) * hidden_;
  }
  void load_state(std::int64_t block, float* c) const;
  void keep_state(std::int64_t block, const float* c, const float* h_last) const;
  // A second run reads the [x | h] of the first run, and keeps nothing except its trace.
  void forward_block(std::int64_t block, int thread, const Trace& trace, bool second);
  void backward_block(std::int64_t block, int thread);
  void backward();
  void store_gradients() const;

  SequenceContext context_;
  RowBlocks blocks_;
  StatePlace place_;
  Feature *x_, *y_;
  bool one_hot_, recomputed_;
  std::int64_t hidden_, columns_, symbols_;  // columns: of [x | h]; symbols: of a one-hot input
  double drop_ = 0;
  std::int64_t drop_layer_ = 0;
  Parameter w_ih_, w_hh_, b_ih_, b_hh_;
  std::string name_;

  // A zero state needs no product with W_hh at the first time step. Short sequences have separate products for this
  // step. They save 4 % of the time for pet names (8 steps). For 64 steps, their copies of the weights would cost more
  // than they save.
  bool short_sequence_;
  Product forward_product_, backward_product_, first_forward_, first_backward_;  // empty if the layer needs none
  Gemm weight_product_, weight_product_add_;
  std::int64_t chunk_blocks_ = 1;  // blocks per weight-gradient product

  Trace first_, again_;  // if the layer is not recomputed, both are the same
  // Storages.
  int tokens_ = -1, input_ = -1, input_gradient_ = -1, first_cell_ = -1;
  int addend_ = -1, joined_ = -1, scratch_ = -1;          // last for the whole run
  int d_cell_ = -1, d_bias_ = -1, weight_gradient_ = -1;  // working space of the backward step
};

}  // namespace ringtrain::cpu
