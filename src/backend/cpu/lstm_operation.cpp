#include "backend/cpu/lstm_operation.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "backend/cpu/gemm.h"
#include "nn/lstm_cell.h"

namespace ringtrain::cpu {

template <class T>
struct LstmOperation<T>::State {
  OperationContext context;
  RowBlocks blocks;
  const Kernels* kernels;
  bool one_hot, training, recomputed;
  std::int64_t H, K, V;  // hidden size; columns of [x | h]; number of symbols of a one-hot input
  std::int64_t layer_index = 0, layer_count = 1;
  double drop = 0;
  std::int64_t drop_layer = 0;
  Parameter w_ih, w_hh, b_ih, b_hh;
  std::int64_t chunk_blocks;  // blocks per weight-gradient product
  Port output;

  // A zero state needs no product with W_hh at the first time step. Short sequences have separate products for this
  // step. They save 4 % of the time for pet names (8 steps). For 64 steps, their copies of the weights would cost more
  // than they save.
  bool short_sequence = false;
  Gemm forward_product, backward_product, first_forward, first_backward, weight_product, weight_product_add;

  struct {
    Buffer input, input_gradient, gates, cell, mask;            // per micro-batch
    Buffer first_cell, cell_again, mask_again, products_again;  // only for a recomputed layer
    Buffer packed_first_forward, packed_first_backward;
    Buffer packed_forward, packed_backward, addend, joined;
    Buffer products, d_cell, d_hidden, d_bias, weight_gradient, scratch;  // working space
  } plan;
  T *input = nullptr, *out = nullptr;
  float *input_gradient = nullptr, *first_cell = nullptr, *addend = nullptr, *joined = nullptr;
  float *d_cell = nullptr, *d_hidden = nullptr, *d_bias = nullptr, *weight_gradient = nullptr;
  const float* d_out = nullptr;

  // The memory where a run over the time steps stores its values for the backward steps.
  struct Trace {
    float* cell = nullptr;
    std::uint8_t* mask = nullptr;
    T* gates = nullptr;  // gates of all blocks
    float* products = nullptr;
    std::int64_t cell_slots = 0, mask_slots = 0;  // number of time steps that fit
    bool by_thread = false;                       // cell and mask hold one block per thread instead of all blocks
  };
  Trace first, again;  // if the layer is not recomputed, both are the same

  std::int64_t x_columns() const { return K - H; }
  std::int64_t bias_rows() const { return one_hot ? V : 1; }
  // Returns the element offset of (block, time) in a buffer: `features` per row, `slots` time steps per block.
  std::int64_t at(std::int64_t block, std::int64_t time, std::int64_t features, std::int64_t slots) const {
    return (block * slots + time) * blocks.block_rows * features;
  }
  // Returns c before time step `time`.
  float* cell_at(const Trace& trace, std::int64_t block, std::int64_t thread, std::int64_t time) const {
    return trace.cell + at(trace.by_thread ? thread : block, time % trace.cell_slots, H, trace.cell_slots);
  }
  std::uint8_t* mask_at(const Trace& trace, std::int64_t block, std::int64_t thread, std::int64_t time) const {
    if (drop == 0) return nullptr;
    return trace.mask + at(trace.by_thread ? thread : block, time % trace.mask_slots, H, trace.mask_slots);
  }
  T* gates_at(const Trace& trace, std::int64_t block, std::int64_t time) const {
    return trace.gates == nullptr ? nullptr : trace.gates + at(block, time, 4 * H, blocks.sequence);
  }
  float* carried(const Pass& pass, std::int64_t row, int which) const {
    return pass.context.state + ((row * layer_count + layer_index) * 2 + which) * H;
  }
  void load_state(const Pass& pass, std::int64_t block, float* c);
  void keep_state(const Pass& pass, std::int64_t block, const float* c, const float* h_last);
  // A second run reads the [x | h] of the first run, and keeps nothing except its trace.
  void forward_block(const Pass& pass, std::int64_t block, int thread, const Trace& trace, bool second);
  void backward_block(const Pass& pass, std::int64_t block, int thread, const std::function<void()>& poll);
};

template <class T>
LstmOperation<T>::LstmOperation(const OperationContext& context, const Lstm& node, bool one_hot, const Dropout* dropout,
                                bool recomputed)
    : s_(std::make_unique<State>()) {
  State& s = *s_;
  s.context = context;
  s.blocks = context.blocks;
  s.kernels = context.kernels;
  s.one_hot = one_hot;
  s.training = context.training;
  s.recomputed = recomputed && context.training;
  s.H = node.hidden;
  s.K = one_hot ? node.hidden : node.input + node.hidden;
  s.V = node.input;
  if (dropout != nullptr && context.training) {
    s.drop = dropout->probability;
    s.drop_layer = dropout->layer;
  }
  s.w_ih = context.parameters->find(node.weight_ih);
  s.w_hh = context.parameters->find(node.weight_hh);
  s.b_ih = context.parameters->find(node.bias_ih);
  s.b_hh = context.parameters->find(node.bias_hh);
  const std::int64_t steps = s.blocks.sequence;
  s.first.cell_slots = s.training && !s.recomputed ? steps + 1 : 2;
  s.first.mask_slots = s.recomputed ? 1 : steps;
  s.first.by_thread = s.recomputed;
  s.again = {.cell_slots = steps + 1, .mask_slots = steps, .by_thread = s.recomputed};

  // Weight-gradient products over about 2048 positions run at full speed, and oneDNN's transposed copy of the gates
  // stays small.
  const std::int64_t wanted = std::max<std::int64_t>(1, 2048 / (s.blocks.block_rows * s.blocks.sequence));
  s.chunk_blocks = std::min(wanted, s.blocks.blocks);
  while (s.blocks.blocks % s.chunk_blocks != 0) --s.chunk_blocks;

  const bool bf16 = sizeof(T) == 2;
  const int threads = s.blocks.threads;
  s.short_sequence = !one_hot && s.blocks.sequence <= 16;
  GemmShape step{.m = s.blocks.block_rows, .n = 4 * s.H, .k = s.K, .bf16 = bf16, .lda = s.K, .ldc = 4 * s.H};
  s.forward_product = Gemm(step, 1, threads);
  step.k = s.x_columns();
  if (s.short_sequence) s.first_forward = Gemm(step, 1, threads);
  if (!s.training) return;
  step = {.m = s.blocks.block_rows, .n = s.K, .k = 4 * s.H, .bf16 = bf16, .lda = 4 * s.H, .ldc = s.K};
  s.backward_product = Gemm(step, 1, threads);
  step.n = s.x_columns();
  if (s.short_sequence) s.first_backward = Gemm(step, 1, threads);
  GemmShape weights{.m = 4 * s.H,
                    .n = s.K,
                    .k = s.chunk_blocks * s.blocks.block_rows * s.blocks.sequence,
                    .bf16 = bf16,
                    .a_transposed = true,
                    .lda = 4 * s.H,
                    .ldb = s.K,
                    .ldc = s.K};
  s.weight_product = Gemm(weights, threads, 1);
  weights.accumulate = true;
  if (s.chunk_blocks < s.blocks.blocks) s.weight_product_add = Gemm(weights, threads, 1);
}

template <class T>
LstmOperation<T>::~LstmOperation() = default;

template <class T>
Port LstmOperation<T>::input_port() const {
  return {s_->plan.input, s_->K, s_->plan.input_gradient, s_->K};
}

template <class T>
void LstmOperation<T>::set_output(const Port& output) {
  s_->output = output;
}

template <class T>
void LstmOperation<T>::set_state_place(std::int64_t index, std::int64_t count) {
  s_->layer_index = index;
  s_->layer_count = count;
}

template <class T>
std::int64_t LstmOperation<T>::gradient_end() const {
  return s_->b_hh.offset + (s_->b_hh.count + 63) / 64 * 64;
}

template <class T>
void LstmOperation<T>::plan(ArenaPlan& arena, int forward, int backward) {
  State& s = *s_;
  const auto elements = [](std::int64_t n, std::size_t size) { return n * static_cast<std::int64_t>(size); };
  const std::int64_t n = s.blocks.positions(), rows = s.blocks.padded_rows(), b = s.blocks.block_rows;
  const std::int64_t threads = s.blocks.threads;
  const int last = s.training ? backward : forward;
  const std::string name =
      s.w_hh.name.substr(0, s.w_hh.name.find('.')) + " layer " + std::to_string(s.layer_index) + " ";
  s.plan.input = arena.add(name + "input and hidden", elements(n * s.K, sizeof(T)), forward - 1, last);
  const auto traced = [&](const char* what, const State::Trace& trace, std::int64_t slots, std::size_t size, int from,
                          int to) {
    return arena.add(name + what, elements(slots * (trace.by_thread ? threads * b : rows) * s.H, size), from, to);
  };
  const int first_last = s.recomputed ? forward : last;
  s.plan.cell = traced("cell", s.first, s.first.cell_slots, sizeof(float), forward, first_last);
  s.plan.packed_forward = arena.add(name + "weights, forward", s.forward_product.packed_bytes());
  if (s.short_sequence)
    s.plan.packed_first_forward = arena.add(name + "weights, first forward", s.first_forward.packed_bytes());
  s.plan.addend = arena.add(name + "bias", elements(s.bias_rows() * 4 * s.H, sizeof(float)));
  s.plan.products = arena.add(name + "products", elements(threads * b * 4 * s.H, sizeof(float)), forward, forward);
  // A carried hidden state is handed over as fp32 values. They take the space of one time step.
  s.plan.d_hidden = arena.add(name + "hidden, one step", elements(threads * b * s.H, sizeof(float)), forward, last);
  std::int64_t scratch = s.forward_product.scratch_bytes() + s.first_forward.scratch_bytes();
  if (s.training) {
    s.plan.gates = arena.add(name + "gates", elements(n * 4 * s.H, sizeof(T)), s.recomputed ? last : forward, last);
    if (s.drop > 0) s.plan.mask = traced("dropout mask", s.first, s.first.mask_slots, 1, forward, first_last);
    if (s.recomputed) {
      s.plan.first_cell = arena.add(name + "first cell", elements(rows * s.H, sizeof(float)), forward, last);
      s.plan.cell_again = traced("cell, again", s.again, s.again.cell_slots, sizeof(float), last, last);
      if (s.drop > 0) s.plan.mask_again = traced("dropout mask, again", s.again, s.again.mask_slots, 1, last, last);
      s.plan.products_again =
          arena.add(name + "products, again", elements(threads * b * 4 * s.H, sizeof(float)), last, last);
    }
    // The layer before this one reads its output's gradient here. A one-hot input has none, so one time step is enough.
    s.plan.input_gradient = arena.add(name + "input gradient",
                                      elements((s.one_hot ? threads * b : n) * s.K, sizeof(float)), last, last + 1);
    s.plan.joined = arena.add(name + "weights, joined", elements(4 * s.H * s.K, sizeof(float)));
    s.plan.packed_backward = arena.add(name + "weights, backward", s.backward_product.packed_bytes());
    if (s.short_sequence)
      s.plan.packed_first_backward = arena.add(name + "weights, first backward", s.first_backward.packed_bytes());
    s.plan.d_cell = arena.add(name + "cell gradient", elements(threads * b * s.H, sizeof(float)), last, last);
    s.plan.d_bias =
        arena.add(name + "bias gradient", elements(threads * s.bias_rows() * 4 * s.H, sizeof(float)), last, last);
    s.plan.weight_gradient = arena.add(name + "weight gradient", elements(4 * s.H * s.K, sizeof(float)), last, last);
    for (const Gemm* product : {&s.backward_product, &s.first_backward, &s.weight_product, &s.weight_product_add})
      scratch += product->scratch_bytes();
  }
  s.plan.scratch = arena.add(name + "oneDNN scratch", scratch);
}

template <class T>
void LstmOperation<T>::bind(const Arena& arena) {
  State& s = *s_;
  arena.place(s.input, s.plan.input);
  arena.place(s.out, s.output.buffer);
  arena.place(s.input_gradient, s.plan.input_gradient);
  arena.place(s.addend, s.plan.addend);
  arena.place(s.joined, s.plan.joined);
  arena.place(s.d_cell, s.plan.d_cell);
  arena.place(s.d_hidden, s.plan.d_hidden);
  arena.place(s.d_bias, s.plan.d_bias);
  arena.place(s.weight_gradient, s.plan.weight_gradient);
  arena.place(s.d_out, s.output.gradient);
  arena.place(s.first_cell, s.plan.first_cell);
  arena.place(s.first.cell, s.plan.cell);
  arena.place(s.first.mask, s.plan.mask);
  arena.place(s.first.products, s.plan.products);
  if (!s.recomputed) arena.place(s.first.gates, s.plan.gates);
  s.again = s.recomputed ? s.again : s.first;
  if (s.recomputed) {
    arena.place(s.again.cell, s.plan.cell_again);
    arena.place(s.again.mask, s.plan.mask_again);
    arena.place(s.again.products, s.plan.products_again);
    arena.place(s.again.gates, s.plan.gates);
  }

  char* scratch = arena.at(s.plan.scratch);
  scratch = s.forward_product.bind(arena.at(s.plan.packed_forward), scratch);
  scratch = s.first_forward.bind(arena.at(s.plan.packed_first_forward), scratch);
  scratch = s.backward_product.bind(arena.at(s.plan.packed_backward), scratch);
  scratch = s.first_backward.bind(arena.at(s.plan.packed_first_backward), scratch);
  scratch = s.weight_product.bind(nullptr, scratch);
  s.weight_product_add.bind(nullptr, scratch);
}

template <class T>
void LstmOperation<T>::set_weights(const float* flat) {
  State& s = *s_;
  const std::int64_t G = 4 * s.H, x = s.x_columns();
  const float* w_ih = flat + s.w_ih.offset;
  const float* w_hh = flat + s.w_hh.offset;
  const float* b_ih = flat + s.b_ih.offset;
  const float* b_hh = flat + s.b_hh.offset;
  if (s.one_hot) {
    for (std::int64_t v = 0; v < s.V; ++v)
      for (std::int64_t g = 0; g < G; ++g) s.addend[v * G + g] = w_ih[g * s.V + v] + b_ih[g] + b_hh[g];
  } else {
    for (std::int64_t g = 0; g < G; ++g) s.addend[g] = b_ih[g] + b_hh[g];
  }
  if (!s.training) {  // [W_ih | W_hh] is joined here, but not kept
    std::vector<float> joined(static_cast<std::size_t>(G * s.K));
    for (std::int64_t g = 0; g < G; ++g) {
      std::copy_n(w_ih + g * x, x, joined.data() + g * s.K);
      std::copy_n(w_hh + g * s.H, s.H, joined.data() + g * s.K + x);
    }
    s.forward_product.pack(joined.data(), 1, s.K);
    if (s.short_sequence) s.first_forward.pack(joined.data(), 1, s.K);
    return;
  }
#pragma omp parallel for num_threads(s.blocks.threads) schedule(static)
  for (std::int64_t g = 0; g < G; ++g) {
    std::memcpy(s.joined + g * s.K, w_ih + g * x, static_cast<std::size_t>(x) * sizeof(float));
    std::memcpy(s.joined + g * s.K + x, w_hh + g * s.H, static_cast<std::size_t>(s.H) * sizeof(float));
  }
  s.forward_product.pack(s.joined, 1, s.K);
  s.backward_product.pack(s.joined, s.K, 1);
  if (!s.short_sequence) return;
  s.first_forward.pack(s.joined, 1, s.K);
  s.first_backward.pack(s.joined, s.K, 1);
}

template <class T>
void LstmOperation<T>::State::load_state(const Pass& pass, std::int64_t block, float* c) {
  T* h = input + at(block, 0, K, blocks.sequence) + x_columns();
  for (std::int64_t r = 0; r < blocks.block_rows; ++r) {
    const std::int64_t row = block * blocks.block_rows + r;
    const bool given = pass.context.state != nullptr && row < blocks.rows;
    for (std::int64_t j = 0; j < H; ++j) {
      h[r * K + j] = from_float<T>(given ? carried(pass, row, 0)[j] : 0.0f);
      c[r * H + j] = given ? carried(pass, row, 1)[j] : 0.0f;
    }
  }
}

template <class T>
void LstmOperation<T>::State::keep_state(const Pass& pass, std::int64_t block, const float* c, const float* h_last) {
  for (std::int64_t r = 0; r < blocks.block_rows; ++r) {
    const std::int64_t row = block * blocks.block_rows + r;
    if (row >= blocks.rows) break;
    std::copy_n(h_last + r * H, H, carried(pass, row, 0));
    std::copy_n(c + r * H, H, carried(pass, row, 1));
  }
}

template <class T>
void LstmOperation<T>::State::forward_block(const Pass& pass, std::int64_t block, int thread, const Trace& trace,
                                            bool second) {
  const std::int64_t b = blocks.block_rows, steps = blocks.sequence;
  const bool carry = pass.context.state != nullptr;
  float* x = trace.products + thread * b * 4 * H;
  float* one_step = d_hidden + thread * b * H;
  float* c_first = cell_at(trace, block, thread, 0);
  if (second) {
    std::copy_n(first_cell + block * b * H, b * H, c_first);
  } else {
    load_state(pass, block, c_first);
    if (recomputed) std::copy_n(c_first, b * H, first_cell + block * b * H);
  }
  for (std::int64_t t = 0; t < steps; ++t) {
    // If the state is zero, a one-hot layer has nothing to multiply at the first step.
    const bool nothing = t == 0 && one_hot && !carry;
    Gemm& product = t == 0 && short_sequence && !carry ? first_forward : forward_product;
    if (!nothing) product.run(thread, input + at(block, t, K, steps), x);
    std::uint8_t* step_mask = mask_at(trace, block, thread, t);
    if (step_mask != nullptr)
      kernels->dropout_mask({.key = pass.context.dropout_key,
                             .step = pass.context.step,
                             .layer = drop_layer,
                             .first_row = pass.context.first_row + block * b,
                             .time = t,
                             .threshold = dropout_threshold(drop)},
                            b, H, step_mask);
    LstmForward<T> a{};
    a.rows = b;
    a.hidden = H;
    a.products = nothing ? nullptr : x;
    a.addend = addend;
    a.tokens = one_hot ? pass.tokens + block * b * steps + t : nullptr;
    a.token_stride = steps;
    a.c_previous = cell_at(trace, block, thread, t);
    a.c = cell_at(trace, block, thread, t + 1);
    a.gates = gates_at(trace, block, t);
    a.h = t + 1 < steps && !second ? input + at(block, t + 1, K, steps) + x_columns() : nullptr;
    a.ld_h = K;
    a.out = second ? reinterpret_cast<T*>(one_step) : out + at(block, t, output.ld, steps);
    a.ld_out = second ? H : output.ld;
    a.mask = step_mask;
    a.mask_scale = static_cast<float>(1 / (1 - dropout_threshold(drop) / 65536.0));
    a.h_last = carry && !second && t + 1 == steps ? one_step : nullptr;
    kernels->lstm_forward(a);
  }
  if (carry && !second) keep_state(pass, block, cell_at(trace, block, thread, steps), one_step);
}

template <class T>
void LstmOperation<T>::forward(Pass& pass) {
  for_each_block(s_->blocks,
                 [&](std::int64_t block, int thread) { s_->forward_block(pass, block, thread, s_->first, false); });
}

template <class T>
void LstmOperation<T>::State::backward_block(const Pass& pass, std::int64_t block, int thread,
                                             const std::function<void()>& poll) {
  const std::int64_t b = blocks.block_rows, steps = blocks.sequence;
  float* dc = d_cell + thread * b * H;
  std::fill_n(dc, b * H, 0.0f);
  float* d_h = nullptr;  // gradient of this step's h from the following time step
  for (std::int64_t t = steps - 1; t >= 0; --t) {
    LstmBackward<T> a{};
    a.rows = b;
    a.hidden = H;
    a.gates = gates_at(again, block, t);
    a.c = cell_at(again, block, thread, t + 1);
    a.c_previous = cell_at(again, block, thread, t);
    a.d_out = d_out + at(block, t, output.gradient_ld, steps);
    a.ld_out = output.gradient_ld;
    a.mask = mask_at(again, block, thread, t);
    a.mask_scale = static_cast<float>(1 / (1 - dropout_threshold(drop) / 65536.0));
    a.d_h = d_h;
    a.ld_h = K;
    a.d_c = dc;
    if (one_hot) {
      a.d_tokens = d_bias + thread * V * 4 * H;
      a.tokens = pass.tokens + block * b * steps + t;
      a.token_stride = steps;
    } else {
      a.d_bias = d_bias + thread * 4 * H;
    }
    kernels->lstm_backward(a);
    if (poll && thread == 0) poll();
    if (one_hot && t == 0) break;  // the gradient of the initial state is not needed
    float* d_input = one_hot ? input_gradient + thread * b * K : input_gradient + at(block, t, K, steps);
    Gemm& product = t == 0 && short_sequence ? first_backward : backward_product;  // the gradient of h is not needed
    product.run(thread, a.gates, d_input);
    d_h = d_input + x_columns();
  }
}

template <class T>
void LstmOperation<T>::backward(const Pass& pass, float* gradients, bool accumulate,
                                const std::function<void()>& poll) {
  State& s = *s_;
  const std::int64_t G = 4 * s.H, x = s.x_columns(), threads = s.blocks.threads;
  std::fill_n(s.d_bias, threads * s.bias_rows() * G, 0.0f);
  for_each_block(s.blocks, [&](std::int64_t block, int thread) {
    if (s.recomputed) s.forward_block(pass, block, thread, s.again, true);
    s.backward_block(pass, block, thread, poll);
  });

  for (std::int64_t block = 0; block < s.blocks.blocks; block += s.chunk_blocks) {
    Gemm& product = block == 0 ? s.weight_product : s.weight_product_add;
    product.run(0, s.again.gates + s.at(block, 0, G, s.blocks.sequence),
                s.input + s.at(block, 0, s.K, s.blocks.sequence), s.weight_gradient);
    if (poll) poll();
  }
  float* w_ih = gradients + s.w_ih.offset;
  float* w_hh = gradients + s.w_hh.offset;
#pragma omp parallel for num_threads(s.blocks.threads) schedule(static)
  for (std::int64_t g = 0; g < G; ++g) {
    if (x > 0) store_gradient(*s.kernels, x, s.weight_gradient + g * s.K, w_ih + g * x, accumulate);
    store_gradient(*s.kernels, s.H, s.weight_gradient + g * s.K + x, w_hh + g * s.H, accumulate);
  }
  for (std::int64_t thread = 1; thread < threads; ++thread)
    s.kernels->add(s.bias_rows() * G, s.d_bias + thread * s.bias_rows() * G, s.d_bias);
  if (s.one_hot) {
    for (std::int64_t g = 0; g < G; ++g)
      for (std::int64_t v = 0; v < s.V; ++v) {
        const float value = s.d_bias[v * G + g];
        w_ih[g * s.V + v] = accumulate ? w_ih[g * s.V + v] + value : value;
      }
    for (std::int64_t v = 1; v < s.V; ++v) s.kernels->add(G, s.d_bias + v * G, s.d_bias);
  }
  store_gradient(*s.kernels, G, s.d_bias, gradients + s.b_ih.offset, accumulate);
  store_gradient(*s.kernels, G, s.d_bias, gradients + s.b_hh.offset, accumulate);
}

template class LstmOperation<float>;
template class LstmOperation<BFloat16>;

}  // namespace ringtrain::cpu
