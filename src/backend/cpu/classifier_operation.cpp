#include "backend/cpu/classifier_operation.h"

#include <algorithm>

#include "backend/cpu/gemm.h"

namespace ringtrain::cpu {

template <class T>
struct ClassifierOperation<T>::State {
  OperationContext context;
  RowBlocks blocks;
  const Kernels* kernels;
  bool training;
  std::int64_t H, classes, width;  // width: classes rounded up to a multiple of 16
  Parameter weight, bias;

  Gemm forward_product, backward_product, weight_product;

  struct {
    Buffer input, input_gradient, logits, d_logits;
    Buffer padded, bias, packed_forward, packed_backward;
    Buffer d_bias, weight_gradient, scratch;
  } plan;
  T *input = nullptr, *d_logits = nullptr;
  float *logits = nullptr, *input_gradient = nullptr, *padded = nullptr, *padded_bias = nullptr;
  float *d_bias = nullptr, *weight_gradient = nullptr;

  std::int64_t block_positions() const { return blocks.block_rows * blocks.sequence; }
};

template <class T>
ClassifierOperation<T>::ClassifierOperation(const OperationContext& context, const Dense& node)
    : s_(std::make_unique<State>()) {
  State& s = *s_;
  s.context = context;
  s.blocks = context.blocks;
  s.kernels = context.kernels;
  s.training = context.training;
  s.H = node.input;
  s.classes = node.output;
  s.width = (node.output + 15) / 16 * 16;
  s.weight = context.parameters->find(node.weight);
  s.bias = context.parameters->find(node.bias);
  const bool bf16 = sizeof(T) == 2;
  const int threads = s.blocks.threads;
  const std::int64_t m = s.block_positions();
  s.forward_product = Gemm({.m = m, .n = s.width, .k = s.H, .bf16 = bf16, .lda = s.H, .ldc = s.width}, 1, threads);
  if (!s.training) return;
  s.backward_product = Gemm({.m = m, .n = s.H, .k = s.width, .bf16 = bf16, .lda = s.width, .ldc = s.H}, 1, threads);
  s.weight_product = Gemm({.m = s.width,
                           .n = s.H,
                           .k = s.blocks.positions(),
                           .bf16 = bf16,
                           .a_transposed = true,
                           .lda = s.width,
                           .ldb = s.H,
                           .ldc = s.H},
                          threads, 1);
}

template <class T>
ClassifierOperation<T>::~ClassifierOperation() = default;

template <class T>
Port ClassifierOperation<T>::input_port() const {
  return {s_->plan.input, s_->H, s_->plan.input_gradient, s_->H};
}

template <class T>
std::int64_t ClassifierOperation<T>::gradient_end() const {
  return s_->bias.offset + (s_->bias.count + 63) / 64 * 64;
}

template <class T>
void ClassifierOperation<T>::plan(ArenaPlan& arena, int forward, int backward) {
  State& s = *s_;
  const auto elements = [](std::int64_t n, std::size_t size) { return n * static_cast<std::int64_t>(size); };
  const std::int64_t n = s.blocks.positions(), threads = s.blocks.threads;
  const int last = s.training ? backward : forward;
  const std::string name = s.weight.name.substr(0, s.weight.name.find('.')) + " ";
  s.plan.input = arena.add(name + "input", elements(n * s.H, sizeof(T)), forward - 1, last);
  s.plan.padded = arena.add(name + "weights, padded", elements(s.width * s.H, sizeof(float)));
  s.plan.bias = arena.add(name + "bias", elements(s.width, sizeof(float)));
  s.plan.packed_forward = arena.add(name + "weights, forward", s.forward_product.packed_bytes());
  // Inference keeps the logits of the whole micro-batch. Training keeps those of the blocks being computed.
  const std::int64_t kept = s.training ? threads * s.block_positions() : n;
  s.plan.logits = arena.add(name + "logits", elements(kept * s.width, sizeof(float)), forward, forward + 1);
  std::int64_t scratch = s.forward_product.scratch_bytes();
  if (s.training) {
    s.plan.d_logits = arena.add(name + "logits gradient", elements(n * s.width, sizeof(T)), forward, last);
    s.plan.d_bias = arena.add(name + "bias gradient", elements(threads * s.width, sizeof(float)), forward, last);
    s.plan.input_gradient = arena.add(name + "input gradient", elements(n * s.H, sizeof(float)), last, last + 1);
    s.plan.packed_backward = arena.add(name + "weights, backward", s.backward_product.packed_bytes());
    s.plan.weight_gradient = arena.add(name + "weight gradient", elements(s.width * s.H, sizeof(float)), last, last);
    scratch += s.backward_product.scratch_bytes() + s.weight_product.scratch_bytes();
  }
  s.plan.scratch = arena.add(name + "oneDNN scratch", scratch);
}

template <class T>
void ClassifierOperation<T>::bind(const Arena& arena) {
  State& s = *s_;
  arena.place(s.input, s.plan.input);
  arena.place(s.d_logits, s.plan.d_logits);
  arena.place(s.logits, s.plan.logits);
  arena.place(s.input_gradient, s.plan.input_gradient);
  arena.place(s.padded, s.plan.padded);
  arena.place(s.padded_bias, s.plan.bias);
  arena.place(s.d_bias, s.plan.d_bias);
  arena.place(s.weight_gradient, s.plan.weight_gradient);

  char* scratch = arena.at(s.plan.scratch);
  scratch = s.forward_product.bind(arena.at(s.plan.packed_forward), scratch);
  if (!s.training) return;
  scratch = s.backward_product.bind(arena.at(s.plan.packed_backward), scratch);
  scratch = s.weight_product.bind(nullptr, scratch);
}

template <class T>
void ClassifierOperation<T>::set_weights(const float* flat) {
  State& s = *s_;
  std::copy_n(flat + s.weight.offset, s.weight.count, s.padded);
  std::fill(s.padded + s.weight.count, s.padded + s.width * s.H, 0.0f);
  std::copy_n(flat + s.bias.offset, s.classes, s.padded_bias);
  std::fill(s.padded_bias + s.classes, s.padded_bias + s.width, -1e30f);  // gives padded classes the probability zero
  s.forward_product.pack(s.padded, 1, s.H);
  if (s.training) s.backward_product.pack(s.padded, s.H, 1);
}

template <class T>
void ClassifierOperation<T>::forward(Pass& pass) {
  State& s = *s_;
  const std::int64_t m = s.block_positions();
  std::vector<CrossEntropySums> sums(static_cast<std::size_t>(s.blocks.blocks));
  if (s.training) std::fill_n(s.d_bias, s.blocks.threads * s.width, 0.0f);
  for_each_block(s.blocks, [&](std::int64_t block, int thread) {
    float* logits = s.logits + (s.training ? thread : block) * m * s.width;
    s.forward_product.run(thread, s.input + block * m * s.H, logits);
    CrossEntropyRows<T> a{};
    a.rows = m;
    a.classes = s.classes;
    a.width = s.width;
    a.logits = logits;
    a.bias = s.padded_bias;
    a.targets = pass.targets + block * m;
    a.block = s.blocks.block_rows;
    a.target_stride = s.blocks.sequence;
    a.scale = pass.context.gradient_scale;
    a.d_logits = s.training ? s.d_logits + block * m * s.width : nullptr;
    a.d_bias = s.training ? s.d_bias + thread * s.width : nullptr;
    sums[static_cast<std::size_t>(block)] = s.kernels->cross_entropy(a);
  });
  for (const CrossEntropySums& block : sums) {  // in the order of the blocks: the same bits each time
    pass.sums.loss += block.loss;
    pass.sums.correct += block.correct;
    pass.sums.targets += block.targets;
  }
}

template <class T>
void ClassifierOperation<T>::backward(const Pass&, float* gradients, bool accumulate,
                                      const std::function<void()>& poll) {
  State& s = *s_;
  const std::int64_t m = s.block_positions();
  for_each_block(s.blocks, [&](std::int64_t block, int thread) {
    s.backward_product.run(thread, s.d_logits + block * m * s.width, s.input_gradient + block * m * s.H);
    if (poll && thread == 0) poll();
  });
  s.weight_product.run(0, s.d_logits, s.input, s.weight_gradient);
  store_gradient(*s.kernels, s.weight.count, s.weight_gradient, gradients + s.weight.offset, accumulate);
  for (std::int64_t thread = 1; thread < s.blocks.threads; ++thread)
    s.kernels->add(s.width, s.d_bias + thread * s.width, s.d_bias);
  store_gradient(*s.kernels, s.classes, s.d_bias, gradients + s.bias.offset, accumulate);
}

template <class T>
std::vector<float> ClassifierOperation<T>::logits(std::int64_t row, std::int64_t position) const {
  const State& s = *s_;
  const std::int64_t block = row / s.blocks.block_rows, r = row % s.blocks.block_rows;
  const float* z = s.logits + (block * s.block_positions() + position * s.blocks.block_rows + r) * s.width;
  std::vector<float> result(static_cast<std::size_t>(s.classes));
  for (std::size_t j = 0; j < result.size(); ++j) result[j] = z[j] + s.padded_bias[j];
  return result;
}

template class ClassifierOperation<float>;
template class ClassifierOperation<BFloat16>;

}  // namespace ringtrain::cpu
