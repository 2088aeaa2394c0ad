// The head of an image model: dense layers with ReLU, dropout between them, and the softmax cross-entropy:
// make_dense(), make_dropout() and make_loss() of operations.h.
#include <algorithm>

#include "backend/cpu/onednn.h"
#include "backend/cpu/operations.h"
#include "base/rounding.h"
#include "nn/math.h"

namespace ringtrain::cpu {
namespace {

template <class T>
class DenseOperation : public CpuOperation {
 public:
  DenseOperation(const ImageContext& context, const Dense& node, bool relu, bool logits, Feature* x, Feature* y)
      : context_(context),
        weight_(context.parameters->find(node.weight)),
        bias_(context.parameters->find(node.bias)),
        images_(context.schedule->samples()),
        input_(node.input),
        output_(node.output),
        relu_(relu),
        logits_(logits),
        x_(x),
        y_(y),
        name_(node.weight.substr(0, node.weight.rfind('.'))) {
    Schedule& s = *context_.schedule;
    y_->vector = true;
    products_ = s.per_sample(name_ + " products", output_ * float_bytes);
    y_->forward = y_->backward = logits_ ? products_ : s.per_sample(name_ + " output", context_.bytes<T>(*y_));
    packed_ = s.lasting(name_ + " weights", 0);
    own_bias_ = s.lasting(name_ + " bias", output_ * float_bytes);
    scratch_ = s.lasting(name_ + " scratch", 0);
    if (!context_.training) return;
    packed_backward_ = s.lasting(name_ + " weights, backward", 0);
    converted_ = s.per_sample(name_ + " gradient", output_ * static_cast<std::int64_t>(sizeof(T)));
  }

  void forward_steps() override {
    Step step{.name = name_,
              .whole = true,
              .uses = {x_->forward, products_, y_->forward},
              .flops_per_sample = 2.0 * static_cast<double>(input_ * output_)};
    step.prepare = [this](std::int64_t) {
      const int threads = context_.schedule->threads();
      product_ = Gemm({.m = images_, .n = output_, .k = input_, .bf16 = context_.bf16, .lda = input_, .ldc = output_},
                      threads, 1);
      context_.schedule->resize(packed_, product_.packed_bytes());
      context_.schedule->resize(scratch_, product_.scratch_bytes());
      if (!context_.training) return;
      input_product_ = Gemm(
          {.m = images_, .n = input_, .k = output_, .bf16 = context_.bf16, .lda = output_, .ldc = input_}, threads, 1);
      context_.schedule->resize(packed_backward_, input_product_.packed_bytes());
      GemmShape shape{.m = output_,
                      .n = input_,
                      .k = images_,
                      .bf16 = context_.bf16,
                      .a_transposed = true,
                      .lda = output_,
                      .ldb = input_,
                      .ldc = input_};
      weight_product_ = Gemm(shape, threads, 1);
      shape.accumulate = true;
      weight_product_added_ = Gemm(shape, threads, 1);
      context_.schedule->resize(
          scratch_, std::max({product_.scratch_bytes(), input_product_.scratch_bytes(), weight_product_.scratch_bytes(),
                              weight_product_added_.scratch_bytes()}));
    };
    context_.schedule->add(std::move(step), [this](const Slice&) { forward(); });
  }

  void backward_steps() override {
    Schedule& s = *context_.schedule;
    const int gradient = y_->gradients.front();
    const int target = s.per_sample(name_ + " input gradient", input_ * float_bytes);
    x_->gradients.push_back(target);
    Step step{.name = name_ + " gradient",
              .whole = true,
              .uses = {gradient, converted_, x_->backward, target},
              .finishes = {weight_.name, bias_.name},
              .flops_per_sample = 4.0 * static_cast<double>(input_ * output_)};
    if (relu_) step.uses.push_back(y_->forward);
    s.add(std::move(step), [this, gradient, target](const Slice&) { backward(gradient, target); });
  }

  void bind() override {
    const Schedule& s = *context_.schedule;
    auto* scratch = s.at<char>(scratch_);
    product_.bind(s.at<char>(packed_), scratch);
    if (!context_.training) return;
    input_product_.bind(s.at<char>(packed_backward_), scratch);
    weight_product_.bind(nullptr, scratch);
    weight_product_added_.bind(nullptr, scratch);
  }

  void set_weights(const float* flat) override {
    const float* weights = flat + weight_.offset;
    product_.pack(weights, 1, input_);
    if (context_.training) input_product_.pack(weights, input_, 1);
    std::copy_n(flat + bias_.offset, output_, context_.schedule->template at<float>(own_bias_));
  }

 private:
  void forward() const {
    const Schedule& s = *context_.schedule;
    auto* products = s.at<float>(products_);
    product_.run(0, s.at<T>(x_->forward), products);
    for_each_unit(s.threads(), {0, images_}, 1, [&](std::int64_t image, std::int64_t) {
      DenseRow<T> a{};
      a.columns = output_;
      a.products = products + image * output_;
      a.bias = s.at<float>(own_bias_);
      a.relu = relu_;
      if (!logits_) a.y = s.at<T>(y_->forward) + image * output_;
      context_.image->dense(a);
    });
  }

  void backward(int gradient, int target) {
    const Schedule& s = *context_.schedule;
    const Pass& pass = *context_.pass;
    auto* converted = s.at<T>(converted_);
    constexpr std::int64_t strip = 256;
    for_each_unit(s.threads(), {0, divide_up(output_, strip)}, 1, [&](std::int64_t i, std::int64_t) {
      DenseGradient<T> a{};
      a.rows = images_;
      a.columns = output_;
      a.begin = i * strip;
      a.end = std::min(output_, a.begin + strip);
      a.d = s.at<float>(gradient);
      if (relu_) a.values = s.at<T>(y_->forward);
      a.out = converted;
      a.d_bias = pass.gradients + bias_.offset;
      a.accumulate = pass.accumulate;
      context_.image->dense_gradient(a);
    });
    input_product_.run(0, converted, s.at<float>(target));
    Gemm& product = pass.accumulate ? weight_product_added_ : weight_product_;
    product.run(0, converted, s.at<T>(x_->backward), pass.gradients + weight_.offset);
  }

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

template <class T>
class DropoutOperation : public CpuOperation {
 public:
  DropoutOperation(const ImageContext& context, const Dropout& node, Feature* x, Feature* y)
      : context_(context), node_(node), x_(x), y_(y), threshold_(dropout_threshold(node.probability)) {
    Schedule& s = *context_.schedule;
    y_->vector = x_->vector;
    y_->forward = y_->backward = s.per_sample("dropout output", context_.bytes<T>(*y_));
    mask_ = s.per_sample("dropout mask", y_->shape.size());
  }

  void forward_steps() override {
    context_.schedule->add({.name = "dropout", .uses = {x_->forward, y_->forward, mask_}}, [this](const Slice& slice) {
      const Schedule& s = *context_.schedule;
      const PassContext& pass = context_.pass->context;
      const std::int64_t n = y_->shape.size();
      const float scale = 1.0f / (1.0f - static_cast<float>(threshold_) / 65536.0f);
      for_each_unit(s.threads(), slice, 1, [&](std::int64_t image, std::int64_t) {
        auto* mask = s.at<std::uint8_t>(mask_, slice, image);
        context_.kernels->dropout_mask(
            {pass.dropout_key, pass.step, node_.layer, pass.first_row + image, 0, threshold_}, 1, n, mask);
        T* y = s.at<T>(y_->forward, slice, image);
        context_.image->dropout(n, s.at<T>(x_->forward, slice, image), mask, scale, y);
        if (!y_->vector) std::fill(y + n, y + context_.padded_channels(*y_), T{});
      });
    });
  }

  void backward_steps() override {
    const int gradient = y_->gradients.front();
    x_->gradients.push_back(gradient);
    context_.schedule->add({.name = "dropout gradient", .uses = {gradient, mask_}},
                           [this, gradient](const Slice& slice) {
                             y_->vector ? drop_gradient<float>(slice, gradient) : drop_gradient<T>(slice, gradient);
                           });
  }

 private:
  template <class Value>
  void drop_gradient(const Slice& slice, int gradient) const {
    const Schedule& s = *context_.schedule;
    const float scale = 1.0f / (1.0f - static_cast<float>(threshold_) / 65536.0f);
    for_each_unit(s.threads(), slice, 1, [&](std::int64_t image, std::int64_t) {
      auto* d = s.at<Value>(gradient, slice, image);
      context_.image->dropout(y_->shape.size(), d, s.at<std::uint8_t>(mask_, slice, image), scale, d);
    });
  }

  ImageContext context_;
  Dropout node_;
  Feature *x_, *y_;
  std::uint32_t threshold_;
  int mask_ = -1;
};

class LossOperation : public CpuOperation {
 public:
  LossOperation(const ImageContext& context, const CrossEntropy& node, Feature* logits)
      : context_(context), node_(node), logits_(logits) {}

  void forward_steps() override {
    Step step{.name = "cross-entropy", .whole = true, .uses = {logits_->forward}, .once = true};
    context_.schedule->add(std::move(step), [this](const Slice& slice) {
      const Schedule& s = *context_.schedule;
      Pass& pass = *context_.pass;
      std::vector<ClassScore> scores(static_cast<std::size_t>(slice.count));
      const double smoothing = context_.training ? node_.label_smoothing : 0;
      for_each_unit(s.threads(), slice, 1, [&](std::int64_t image, std::int64_t) {
        auto* row = s.at<float>(logits_->forward, slice, image);
        scores[static_cast<std::size_t>(image)] =
            context_.image->cross_entropy(node_.classes, row, pass.input.targets[image], smoothing,
                                          pass.context.gradient_scale, context_.training ? row : nullptr);
      });
      for (std::size_t i = 0; i < scores.size(); ++i) {  // in a fixed order: the same bits for every number of threads
        if (pass.input.targets[i] < 0) continue;
        pass.sums.loss += scores[i].loss;
        pass.sums.correct += scores[i].correct ? 1 : 0;
        pass.sums.correct5 += scores[i].correct5 ? 1 : 0;
        ++pass.sums.targets;
      }
    });
  }

  // The loss has written its gradient over the logits.
  void backward_steps() override { logits_->gradients.push_back(logits_->forward); }
  std::vector<float> logits(std::int64_t row, std::int64_t) const override {
    const auto* from = context_.schedule->at<float>(logits_->forward) + row * node_.classes;
    return {from, from + node_.classes};
  }

 private:
  ImageContext context_;
  CrossEntropy node_;
  Feature* logits_;
};

}  // namespace

std::unique_ptr<CpuOperation> make_dense(const ImageContext& context, const Dense& node, bool relu, bool logits,
                                         Feature* x, Feature* y) {
  return make_typed<DenseOperation>(context, node, relu, logits, x, y);
}
std::unique_ptr<CpuOperation> make_dropout(const ImageContext& context, const Dropout& node, Feature* x, Feature* y) {
  return make_typed<DropoutOperation>(context, node, x, y);
}
std::unique_ptr<CpuOperation> make_loss(const ImageContext& context, const CrossEntropy& node, Feature* logits) {
  return std::make_unique<LossOperation>(context, node, logits);
}

}  // namespace ringtrain::cpu
