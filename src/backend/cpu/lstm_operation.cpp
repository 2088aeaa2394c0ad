// An LSTM layer, followed by dropout: make_lstm() of operations.h.
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
#include <algorithm>
#include <array>
#include <string>

#include "backend/cpu/onednn.h"
#include "backend/cpu/operations.h"
#include "base/error.h"
#include "nn/math.h"

namespace ringtrain::cpu {
namespace {

template <class T>
class LstmOperation : public CpuOperation {
 public:
  LstmOperation(const SequenceContext& context, const LstmLayer& layer) : context_(context), layer_(layer) {
    make_products();
    make_storages();
  }

  void forward_steps() override {
    Step step{.name = name_,
              .whole = true,
              .uses = {input_, tokens_, first_cell_, layer_.y->forward, first_.cell, first_.mask, first_.gates,
                       first_.products, first_.one_step},
              .flops_per_sample = 2.0 * static_cast<double>(blocks_.sequence * 4 * hidden_ * columns_)};
    context_.schedule->add(std::move(step), [this](const Slice&) {
      for_each_block(blocks_, [&](std::int64_t block, int thread) {
        if (one_hot_)
          copy_rows(blocks_, block, context_.pass->input.inputs, std::uint8_t{0},
                    context_.memory<std::uint8_t>(tokens_));
        forward_block(block, thread, first_, false);
      });
    });
  }

  void backward_steps() override {
    if (!one_hot_) layer_.x->gradients.push_back(input_gradient_);
    Step step{.name = name_ + " gradient",
              .whole = true,
              .uses = {input_, tokens_, first_cell_, again_.cell, again_.mask, again_.gates,
                       layer_.y->gradients.front(), input_gradient_, d_cell_, d_bias_, weight_gradient_},
              .finishes = {w_ih_.name, w_hh_.name, b_ih_.name, b_hh_.name},
              .flops_per_sample = 4.0 * static_cast<double>(blocks_.sequence * 4 * hidden_ * columns_)};
    if (recomputed_) step.uses.insert(step.uses.end(), {again_.products, again_.one_step});
    context_.schedule->add(std::move(step), [this](const Slice&) { backward(); });
  }

  void bind() override {
    char* scratch = context_.memory<char>(scratch_);
    for (Product* product : products()) scratch = product->gemm.bind(context_.memory<char>(product->packed), scratch);
    scratch = weight_product_.bind(nullptr, scratch);
    weight_product_add_.bind(nullptr, scratch);
  }

  void set_weights(const float* flat) override {
    const std::int64_t G = 4 * hidden_, x = x_columns();
    const float* w_ih = flat + w_ih_.offset;
    const float* w_hh = flat + w_hh_.offset;
    const float* b_ih = flat + b_ih_.offset;
    const float* b_hh = flat + b_hh_.offset;
    auto* addend = context_.memory<float>(addend_);
    if (one_hot_) {
      for (std::int64_t v = 0; v < symbols_; ++v)
        for (std::int64_t g = 0; g < G; ++g) addend[v * G + g] = w_ih[g * symbols_ + v] + b_ih[g] + b_hh[g];
    } else {
      for (std::int64_t g = 0; g < G; ++g) addend[g] = b_ih[g] + b_hh[g];
    }
    std::vector<float> own(context_.training ? 0 : static_cast<std::size_t>(G * columns_));
    float* joined = context_.training ? context_.memory<float>(joined_) : own.data();  // an evaluation does not keep it
#pragma omp parallel for num_threads(blocks_.threads) schedule(static)
    for (std::int64_t g = 0; g < G; ++g) {
      std::copy_n(w_ih + g * x, x, joined + g * columns_);
      std::copy_n(w_hh + g * hidden_, hidden_, joined + g * columns_ + x);
    }
    forward_product_.gemm.pack(joined, 1, columns_);
    if (short_sequence_) first_forward_.gemm.pack(joined, 1, columns_);
    if (!context_.training) return;
    backward_product_.gemm.pack(joined, columns_, 1);
    if (short_sequence_) first_backward_.gemm.pack(joined, columns_, 1);
  }

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

  void make_products() {
    const std::int64_t rows = blocks_.block_rows, gates = 4 * hidden_;
    const int threads = blocks_.threads;
    GemmShape step{.m = rows, .n = gates, .k = columns_, .bf16 = context_.bf16, .lda = columns_, .ldc = gates};
    forward_product_.gemm = Gemm(step, 1, threads);
    step.k = x_columns();
    if (short_sequence_) first_forward_.gemm = Gemm(step, 1, threads);
    if (!context_.training) return;
    step = {.m = rows, .n = columns_, .k = gates, .bf16 = context_.bf16, .lda = gates, .ldc = columns_};
    backward_product_.gemm = Gemm(step, 1, threads);
    step.n = x_columns();
    if (short_sequence_) first_backward_.gemm = Gemm(step, 1, threads);

    // Weight-gradient products over about 2048 positions run at full speed, and oneDNN's transposed copy of the gates
    // stays small.
    const std::int64_t wanted = std::max<std::int64_t>(1, 2048 / (rows * blocks_.sequence));
    chunk_blocks_ = std::min(wanted, blocks_.blocks);
    while (blocks_.blocks % chunk_blocks_ != 0) --chunk_blocks_;
    GemmShape weights{.m = gates,
                      .n = columns_,
                      .k = chunk_blocks_ * rows * blocks_.sequence,
                      .bf16 = context_.bf16,
                      .a_transposed = true,
                      .lda = gates,
                      .ldb = columns_,
                      .ldc = columns_};
    weight_product_ = Gemm(weights, threads, 1);
    weights.accumulate = true;
    if (chunk_blocks_ < blocks_.blocks) weight_product_add_ = Gemm(weights, threads, 1);
  }

  void make_storages() {
    Schedule& s = *context_.schedule;
    const std::int64_t n = blocks_.positions(), of_threads = blocks_.threads * blocks_.block_rows, G = 4 * hidden_;
    constexpr auto element_bytes = static_cast<std::int64_t>(sizeof(T));
    const bool keeps = context_.training && !recomputed_;
    first_ = make_trace("", keeps, !keeps);
    again_ = recomputed_ ? make_trace(", again", true, true) : first_;
    if (context_.training) again_.gates = s.fixed(name_ + " gates", n * G * element_bytes);
    if (keeps) first_.gates = again_.gates;
    input_ = s.fixed(name_ + " input and hidden", n * columns_ * element_bytes);
    if (one_hot_) {
      tokens_ = s.fixed(name_ + " symbols", n);
    } else {
      layer_.x->forward = layer_.x->backward = input_;
      layer_.x->row_elements = columns_;
    }
    std::int64_t scratch = weight_product_.scratch_bytes() + weight_product_add_.scratch_bytes();
    for (Product* product : products()) {
      product->packed = s.lasting(name_ + " weights", product->gemm.packed_bytes());
      scratch += product->gemm.scratch_bytes();
    }
    scratch_ = s.lasting(name_ + " oneDNN scratch", scratch);
    addend_ = s.lasting(name_ + " bias", bias_rows() * G * float_bytes);
    if (!context_.training) return;
    joined_ = s.lasting(name_ + " weights, joined", G * columns_ * float_bytes);
    if (recomputed_) first_cell_ = s.fixed(name_ + " first cell", blocks_.padded_rows() * hidden_ * float_bytes);
    // The layer before this one reads its output's gradient here. A one-hot input has none, so one time step is enough.
    input_gradient_ = s.fixed(name_ + " input gradient", (one_hot_ ? of_threads : n) * columns_ * float_bytes);
    d_cell_ = s.fixed(name_ + " cell gradient", of_threads * hidden_ * float_bytes);
    d_bias_ = s.fixed(name_ + " bias gradient", blocks_.threads * bias_rows() * G * float_bytes);
    weight_gradient_ = s.fixed(name_ + " weight gradient", G * columns_ * float_bytes);
  }

  Trace make_trace(const std::string& suffix, bool all_steps, bool by_thread) const {
    Schedule& s = *context_.schedule;
    const std::int64_t of_threads = blocks_.threads * blocks_.block_rows;
    const std::int64_t values = (by_thread ? of_threads : blocks_.padded_rows()) * hidden_;
    Trace trace{.cell_slots = all_steps ? blocks_.sequence + 1 : 2,
                .mask_slots = all_steps ? blocks_.sequence : 1,
                .by_thread = by_thread};
    trace.cell = s.fixed(name_ + " cell" + suffix, trace.cell_slots * values * float_bytes);
    if (drop_ > 0) trace.mask = s.fixed(name_ + " dropout mask" + suffix, trace.mask_slots * values);
    trace.products = s.fixed(name_ + " products" + suffix, of_threads * 4 * hidden_ * float_bytes);
    trace.one_step = s.fixed(name_ + " hidden, one step" + suffix, of_threads * hidden_ * float_bytes);
    return trace;
  }

  std::int64_t x_columns() const {
    return columns_ - hidden_;
  }
  std::int64_t bias_rows() const {
    return one_hot_ ? symbols_ : 1;
  }
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
    return context_.pass->context.state + ((row * layer_.place.layers + layer_.place.layer) * 2 + which) * hidden_;
  }

  void load_state(std::int64_t block, float* c) const {
    T* h = input_at(block, 0) + x_columns();
    for (std::int64_t r = 0; r < blocks_.block_rows; ++r) {
      const std::int64_t row = block * blocks_.block_rows + r;
      const bool given = context_.pass->context.state != nullptr && row < blocks_.rows;
      for (std::int64_t j = 0; j < hidden_; ++j) {
        h[r * columns_ + j] = from_float<T>(given ? carried(row, 0)[j] : 0.0f);
        c[r * hidden_ + j] = given ? carried(row, 1)[j] : 0.0f;
      }
    }
  }

  void keep_state(std::int64_t block, const float* c, const float* h_last) const {
    for (std::int64_t r = 0; r < blocks_.block_rows; ++r) {
      const std::int64_t row = block * blocks_.block_rows + r;
      if (row >= blocks_.rows) break;
      std::copy_n(h_last + r * hidden_, hidden_, carried(row, 0));
      std::copy_n(c + r * hidden_, hidden_, carried(row, 1));
    }
  }

  // A second run reads the [x | h] of the first run, and keeps nothing except its trace.
  void forward_block(std::int64_t block, int thread, const Trace& trace, bool second) {
    const PassContext& pass = context_.pass->context;
    const std::int64_t b = blocks_.block_rows, steps = blocks_.sequence, H = hidden_;
    const bool carry = pass.state != nullptr;
    auto* products = context_.memory<float>(trace.products, thread * b * 4 * H);
    auto* one_step = context_.memory<float>(trace.one_step, thread * b * H);
    const float mask_scale = static_cast<float>(1 / (1 - dropout_threshold(drop_) / 65536.0));
    float* c_first = cell_at(trace, block, thread, 0);
    if (second) {
      std::copy_n(context_.memory<float>(first_cell_, block * b * H), b * H, c_first);
    } else {
      load_state(block, c_first);
      if (recomputed_) std::copy_n(c_first, b * H, context_.memory<float>(first_cell_, block * b * H));
    }
    for (std::int64_t t = 0; t < steps; ++t) {
      // If the state is zero, a one-hot layer has nothing to multiply at the first step.
      const bool nothing = t == 0 && one_hot_ && !carry;
      Product& product = t == 0 && short_sequence_ && !carry ? first_forward_ : forward_product_;
      if (!nothing) product.gemm.run(thread, input_at(block, t), products);
      std::uint8_t* mask = mask_at(trace, block, thread, t);
      if (mask != nullptr)
        context_.kernels->dropout_mask({.key = pass.dropout_key,
                                        .step = pass.step,
                                        .layer = layer_.dropout.layer,
                                        .first_row = pass.first_row + block * b,
                                        .time = t,
                                        .threshold = dropout_threshold(drop_)},
                                       b, H, mask);
      LstmForward<T> a{};
      a.rows = b;
      a.hidden = H;
      a.products = nothing ? nullptr : products;
      a.addend = context_.memory<float>(addend_);
      a.tokens = one_hot_ ? context_.memory<std::uint8_t>(tokens_, block * b * steps + t) : nullptr;
      a.token_stride = steps;
      a.c_previous = cell_at(trace, block, thread, t);
      a.c = cell_at(trace, block, thread, t + 1);
      a.gates = gates_at(trace, block, t);
      a.h = t + 1 < steps && !second ? input_at(block, t + 1) + x_columns() : nullptr;
      a.ld_h = columns_;
      a.out = second ? reinterpret_cast<T*>(one_step)
                     : context_.memory<T>(layer_.y->forward, at(block, t, layer_.y->row_elements, steps));
      a.ld_out = second ? H : layer_.y->row_elements;
      a.mask = mask;
      a.mask_scale = mask_scale;
      a.h_last = carry && !second && t + 1 == steps ? one_step : nullptr;
      context_.kernels->lstm_forward(a);
    }
    if (carry && !second) keep_state(block, cell_at(trace, block, thread, steps), one_step);
  }

  void backward_block(std::int64_t block, int thread) {
    const std::int64_t b = blocks_.block_rows, steps = blocks_.sequence, H = hidden_;
    const std::function<void()>& poll = context_.pass->poll;
    const float mask_scale = static_cast<float>(1 / (1 - dropout_threshold(drop_) / 65536.0));
    auto* d_cell = context_.memory<float>(d_cell_, thread * b * H);
    std::fill_n(d_cell, b * H, 0.0f);
    float* d_h = nullptr;  // gradient of this step's h from the following time step
    for (std::int64_t t = steps - 1; t >= 0; --t) {
      LstmBackward<T> a{};
      a.rows = b;
      a.hidden = H;
      a.gates = gates_at(again_, block, t);
      a.c = cell_at(again_, block, thread, t + 1);
      a.c_previous = cell_at(again_, block, thread, t);
      a.d_out = context_.memory<float>(layer_.y->gradients.front(), at(block, t, layer_.y->row_elements, steps));
      a.ld_out = layer_.y->row_elements;
      a.mask = mask_at(again_, block, thread, t);
      a.mask_scale = mask_scale;
      a.d_h = d_h;
      a.ld_h = columns_;
      a.d_c = d_cell;
      if (one_hot_) {
        a.d_tokens = context_.memory<float>(d_bias_, thread * symbols_ * 4 * H);
        a.tokens = context_.memory<std::uint8_t>(tokens_, block * b * steps + t);
        a.token_stride = steps;
      } else {
        a.d_bias = context_.memory<float>(d_bias_, thread * 4 * H);
      }
      context_.kernels->lstm_backward(a);
      if (poll && thread == 0) poll();
      if (one_hot_ && t == 0) break;  // the gradient of the initial state is not needed
      auto* d_input =
          context_.memory<float>(input_gradient_, one_hot_ ? thread * b * columns_ : at(block, t, columns_, steps));
      Product& product = t == 0 && short_sequence_ ? first_backward_ : backward_product_;  // that of h is not needed
      product.gemm.run(thread, a.gates, d_input);
      d_h = d_input + x_columns();
    }
  }

  void backward() {
    const std::int64_t G = 4 * hidden_;
    const Pass& pass = *context_.pass;
    std::fill_n(context_.memory<float>(d_bias_), blocks_.threads * bias_rows() * G, 0.0f);
    for_each_block(blocks_, [&](std::int64_t block, int thread) {
      if (recomputed_) forward_block(block, thread, again_, true);
      backward_block(block, thread);
    });
    for (std::int64_t block = 0; block < blocks_.blocks; block += chunk_blocks_) {
      Gemm& product = block == 0 ? weight_product_ : weight_product_add_;
      product.run(0, gates_at(again_, block, 0), input_at(block, 0), context_.memory<float>(weight_gradient_));
      if (pass.poll) pass.poll();
    }
    store_gradients();
  }

  void store_gradients() const {
    const std::int64_t G = 4 * hidden_, x = x_columns();
    const Kernels& kernels = *context_.kernels;
    float* gradients = context_.pass->gradients;
    const bool accumulate = context_.pass->accumulate;
    float* w_ih = gradients + w_ih_.offset;
    float* w_hh = gradients + w_hh_.offset;
    const auto* weights = context_.memory<float>(weight_gradient_);
#pragma omp parallel for num_threads(blocks_.threads) schedule(static)
    for (std::int64_t g = 0; g < G; ++g) {
      if (x > 0) store_gradient(kernels, x, weights + g * columns_, w_ih + g * x, accumulate);
      store_gradient(kernels, hidden_, weights + g * columns_ + x, w_hh + g * hidden_, accumulate);
    }
    auto* d_bias = context_.memory<float>(d_bias_);
    for (std::int64_t thread = 1; thread < blocks_.threads; ++thread)
      kernels.add(bias_rows() * G, d_bias + thread * bias_rows() * G, d_bias);
    if (one_hot_) {
      for (std::int64_t g = 0; g < G; ++g)
        for (std::int64_t v = 0; v < symbols_; ++v) {
          const float value = d_bias[v * G + g];
          w_ih[g * symbols_ + v] = accumulate ? w_ih[g * symbols_ + v] + value : value;
        }
      for (std::int64_t v = 1; v < symbols_; ++v) kernels.add(G, d_bias + v * G, d_bias);
    }
    store_gradient(kernels, G, d_bias, gradients + b_ih_.offset, accumulate);
    store_gradient(kernels, G, d_bias, gradients + b_hh_.offset, accumulate);
  }

  const SequenceContext context_;
  const LstmLayer layer_;
  const RowBlocks blocks_ = context_.blocks;
  const std::string name_ =
      cat(layer_.node.weight_hh.substr(0, layer_.node.weight_hh.find('.')), " layer ", layer_.place.layer);
  const bool one_hot_ = layer_.x == nullptr;  // whether the input is symbols
  const bool recomputed_ = layer_.recomputed && context_.training;
  const double drop_ = context_.training ? layer_.dropout.probability : 0;
  const std::int64_t hidden_ = layer_.node.hidden;
  const std::int64_t columns_ = one_hot_ ? hidden_ : layer_.node.input + hidden_;  // of [x | h]
  const std::int64_t symbols_ = layer_.node.input;                                 // of a one-hot input
  const Parameter w_ih_ = context_.parameters->find(layer_.node.weight_ih);
  const Parameter w_hh_ = context_.parameters->find(layer_.node.weight_hh);
  const Parameter b_ih_ = context_.parameters->find(layer_.node.bias_ih);
  const Parameter b_hh_ = context_.parameters->find(layer_.node.bias_hh);

  // A zero state needs no product with W_hh at the first time step. Short sequences have separate products for this
  // step. They save 4 % of the time for pet names (8 steps). For 64 steps, their copies of the weights would cost more
  // than they save.
  const bool short_sequence_ = !one_hot_ && blocks_.sequence <= 16;
  Product forward_product_, backward_product_, first_forward_, first_backward_;  // empty if the layer needs none
  Gemm weight_product_, weight_product_add_;
  std::int64_t chunk_blocks_ = 1;  // blocks per weight-gradient product

  Trace first_, again_;  // if the layer is not recomputed, both are the same
  // Storages.
  int tokens_ = -1, input_ = -1, input_gradient_ = -1, first_cell_ = -1;
  int addend_ = -1, joined_ = -1, scratch_ = -1;          // last for the whole run
  int d_cell_ = -1, d_bias_ = -1, weight_gradient_ = -1;  // working space of the backward step
};

}  // namespace

std::unique_ptr<CpuOperation> make_lstm(const SequenceContext& context, const LstmLayer& layer) {
  return make_typed<LstmOperation>(context, layer);
}

}  // namespace ringtrain::cpu
