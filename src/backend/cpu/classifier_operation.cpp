// The dense layer at every position, followed by the softmax cross-entropy: make_classifier() of operations.h. In
// training, the forward pass also computes the scaled gradient of the logits. The backward pass starts from it.
#include <algorithm>
#include <string>

#include "backend/cpu/onednn.h"
#include "backend/cpu/operations.h"

namespace ringtrain::cpu {
namespace {

template <class T>
class ClassifierOperation : public CpuOperation {
 public:
  ClassifierOperation(const SequenceContext& context, const Dense& node, Feature* x)
      : context_(context),
        blocks_(context.blocks),
        x_(x),
        hidden_(node.input),
        classes_(node.output),
        width_((node.output + 15) / 16 * 16),
        weight_(context.parameters->find(node.weight)),
        bias_(context.parameters->find(node.bias)),
        name_(node.weight.substr(0, node.weight.find('.'))) {
    make_products();
    make_storages();
  }

  void forward_steps() override {
    context_.schedule->add({.name = name_ + " and cross-entropy",
                            .whole = true,
                            .uses = {input_, targets_, logits_, d_logits_, d_bias_},
                            .flops_per_sample = 2.0 * static_cast<double>(blocks_.sequence * width_ * hidden_),
                            .once = true},
                           [this](const Slice&) { forward(); });
  }

  void backward_steps() override {
    x_->gradients.push_back(input_gradient_);
    context_.schedule->add({.name = name_ + " gradient",
                            .whole = true,
                            .uses = {input_, d_logits_, d_bias_, input_gradient_, weight_gradient_},
                            .finishes = {weight_.name, bias_.name},
                            .flops_per_sample = 4.0 * static_cast<double>(blocks_.sequence * width_ * hidden_)},
                           [this](const Slice&) { backward(); });
  }

  void bind() override {
    char* scratch = context_.memory<char>(scratch_);
    scratch = forward_product_.bind(context_.memory<char>(packed_forward_), scratch);
    scratch = backward_product_.bind(context_.memory<char>(packed_backward_), scratch);
    weight_product_.bind(nullptr, scratch);
  }

  void set_weights(const float* flat) override {
    auto *padded = context_.memory<float>(padded_), *padded_bias = context_.memory<float>(padded_bias_);
    std::copy_n(flat + weight_.offset, weight_.count, padded);
    std::fill(padded + weight_.count, padded + width_ * hidden_, 0.0f);
    std::copy_n(flat + bias_.offset, classes_, padded_bias);
    std::fill(padded_bias + classes_, padded_bias + width_, -1e30f);  // gives padded classes the probability zero
    forward_product_.pack(padded, 1, hidden_);
    if (context_.training) backward_product_.pack(padded, hidden_, 1);
  }

  std::vector<float> logits(std::int64_t row, std::int64_t position) const override {
    const std::int64_t block = row / blocks_.block_rows, r = row % blocks_.block_rows;
    const auto* z =
        context_.memory<float>(logits_, (block * block_positions() + position * blocks_.block_rows + r) * width_);
    const auto* bias = context_.memory<float>(padded_bias_);
    std::vector<float> result(static_cast<std::size_t>(classes_));
    for (std::size_t j = 0; j < result.size(); ++j) result[j] = z[j] + bias[j];
    return result;
  }

 private:
  void make_products() {
    const int threads = blocks_.threads;
    const std::int64_t m = block_positions();
    forward_product_ =
        Gemm({.m = m, .n = width_, .k = hidden_, .bf16 = context_.bf16, .lda = hidden_, .ldc = width_}, 1, threads);
    if (!context_.training) return;
    backward_product_ =
        Gemm({.m = m, .n = hidden_, .k = width_, .bf16 = context_.bf16, .lda = width_, .ldc = hidden_}, 1, threads);
    weight_product_ = Gemm({.m = width_,
                            .n = hidden_,
                            .k = blocks_.positions(),
                            .bf16 = context_.bf16,
                            .a_transposed = true,
                            .lda = width_,
                            .ldb = hidden_,
                            .ldc = hidden_},
                           threads, 1);
  }

  void make_storages() {
    Schedule& s = *context_.schedule;
    const std::int64_t n = blocks_.positions(), threads = blocks_.threads;
    constexpr auto element_bytes = static_cast<std::int64_t>(sizeof(T));
    input_ = x_->forward = x_->backward = s.fixed(name_ + " input", n * hidden_ * element_bytes);
    x_->row_elements = hidden_;
    targets_ = s.fixed(name_ + " targets", n * static_cast<std::int64_t>(sizeof(std::int32_t)));
    padded_ = s.lasting(name_ + " weights, padded", width_ * hidden_ * float_bytes);
    padded_bias_ = s.lasting(name_ + " bias", width_ * float_bytes);
    packed_forward_ = s.lasting(name_ + " weights, forward", forward_product_.packed_bytes());
    packed_backward_ = s.lasting(name_ + " weights, backward", backward_product_.packed_bytes());
    scratch_ =
        s.lasting(name_ + " oneDNN scratch", forward_product_.scratch_bytes() + backward_product_.scratch_bytes() +
                                                 weight_product_.scratch_bytes());
    // Inference keeps the logits of the whole micro-batch. Training keeps those of the blocks being computed.
    const std::int64_t kept = context_.training ? threads * block_positions() : n;
    logits_ = s.fixed(name_ + " logits", kept * width_ * float_bytes);
    if (!context_.training) return;
    d_logits_ = s.fixed(name_ + " logits gradient", n * width_ * element_bytes);
    d_bias_ = s.fixed(name_ + " bias gradient", threads * width_ * float_bytes);
    input_gradient_ = s.fixed(name_ + " input gradient", n * hidden_ * float_bytes);
    weight_gradient_ = s.fixed(name_ + " weight gradient", width_ * hidden_ * float_bytes);
  }

  std::int64_t block_positions() const { return blocks_.block_rows * blocks_.sequence; }

  void forward() {
    Pass& pass = *context_.pass;
    const std::int64_t m = block_positions();
    const bool training = context_.training;
    auto* targets = context_.memory<std::int32_t>(targets_);
    std::vector<CrossEntropySums> sums(static_cast<std::size_t>(blocks_.blocks));
    if (training) std::fill_n(context_.memory<float>(d_bias_), blocks_.threads * width_, 0.0f);
    for_each_block(blocks_, [&](std::int64_t block, int thread) {
      copy_rows(blocks_, block, pass.input.targets, std::int32_t{-1}, targets);
      auto* logits = context_.memory<float>(logits_, (training ? thread : block) * m * width_);
      forward_product_.run(thread, context_.memory<T>(input_, block * m * hidden_), logits);
      CrossEntropyRows<T> a{};
      a.rows = m;
      a.classes = classes_;
      a.width = width_;
      a.logits = logits;
      a.bias = context_.memory<float>(padded_bias_);
      a.targets = targets + block * m;
      a.block = blocks_.block_rows;
      a.target_stride = blocks_.sequence;
      a.scale = pass.context.gradient_scale;
      a.d_logits = training ? context_.memory<T>(d_logits_, block * m * width_) : nullptr;
      a.d_bias = training ? context_.memory<float>(d_bias_, thread * width_) : nullptr;
      sums[static_cast<std::size_t>(block)] = context_.kernels->cross_entropy(a);
    });
    for (const CrossEntropySums& block : sums) {  // in the order of the blocks: the same bits each time
      pass.sums.loss += block.loss;
      pass.sums.correct += block.correct;
      pass.sums.targets += block.targets;
    }
  }

  void backward() {
    const Pass& pass = *context_.pass;
    const std::int64_t m = block_positions();
    const auto *d_logits = context_.memory<T>(d_logits_), *input = context_.memory<T>(input_);
    auto *d_bias = context_.memory<float>(d_bias_), *weight_gradient = context_.memory<float>(weight_gradient_);
    for_each_block(blocks_, [&](std::int64_t block, int thread) {
      backward_product_.run(thread, d_logits + block * m * width_,
                            context_.memory<float>(input_gradient_, block * m * hidden_));
      if (pass.poll && thread == 0) pass.poll();
    });
    weight_product_.run(0, d_logits, input, weight_gradient);
    const Kernels& kernels = *context_.kernels;
    store_gradient(kernels, weight_.count, weight_gradient, pass.gradients + weight_.offset, pass.accumulate);
    for (std::int64_t thread = 1; thread < blocks_.threads; ++thread)
      kernels.add(width_, d_bias + thread * width_, d_bias);
    store_gradient(kernels, classes_, d_bias, pass.gradients + bias_.offset, pass.accumulate);
  }

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

}  // namespace

std::unique_ptr<CpuOperation> make_classifier(const SequenceContext& context, const Dense& node, Feature* x) {
  return make_typed<ClassifierOperation>(context, node, x);
}

}  // namespace ringtrain::cpu
