// A norm, ReLU and the residual addition in one operation: make_norm() of operations.h.
#include <algorithm>

#include "backend/cpu/norm_statistics.h"
#include "backend/cpu/operations.h"

namespace ringtrain::cpu {
namespace {

template <class T>
class NormOperation : public CpuOperation {
 public:
  NormOperation(const ImageContext& context, std::string name, Feature* x, NormStatistics* norm, Feature* second,
                NormStatistics* norm2, bool relu, Feature* y)
      : context_(context),
        name_(std::move(name)),
        x_(x),
        second_(second),
        y_(y),
        norm_(norm),
        norm2_(norm2),
        relu_(relu) {
    for (NormStatistics* given : {norm, norm2})
      if (given != nullptr) norms_.push_back(given);
    Schedule& s = *context_.schedule;
    y_->forward = s.per_sample(name_ + " output", context_.bytes<T>(*y_));
    if (!context_.training) return;
    y_->backward = y_->forward;
    if (recomputed())
      y_->backward = y_->read_again ? s.per_sample(name_ + " output again", context_.bytes<T>(*y_)) : -1;
    if (has_mask()) mask_ = s.per_sample(name_ + " mask", context_.padded_channels(*y_) * y_->pixels() / 8);
    if (norm_ != nullptr)
      sums_ = s.fixed(name_ + " gradient sums",
                      s.samples() * 3 * context_.padded_channels(*y_) * static_cast<std::int64_t>(sizeof(double)));
  }

  void forward_steps() override {
    Step step{
        .name = name_ + (norm_ != nullptr ? " norm" : "") + (second_ != nullptr ? " add" : "") + (relu_ ? " relu" : ""),
        .uses = {x_->forward, y_->forward, mask_, second_ != nullptr ? second_->forward : -1}};
    for (const NormStatistics* norm : norms_)
      for (int storage : norm->forward_storages()) step.uses.push_back(storage);
    if (norm_ != nullptr && norm_->measures()) context_.schedule->cut();
    context_.schedule->add(std::move(step), [this](const Slice& slice) { forward(slice); });
  }

  // The sources are the gradients of y. Their memory is used again. Without a second operand, dz overwrites a source,
  // and dx overwrites dz. With a second operand, dz overwrites the last source. There it becomes the gradient of the
  // second operand, or of the second norm's input. dx then overwrites the first of two sources, or has memory of its
  // own.
  void backward_steps() override {
    Schedule& s = *context_.schedule;
    const std::vector<int> sources = y_->gradients;
    const bool two = sources.size() > 1;
    const auto extra = [&] { return s.per_sample(name_ + " gradient", context_.bytes<T>(*x_)); };
    // relu(norm(x)) with one source: the second pass masks again, so the first pass writes no dz.
    const bool write = !recomputed() || two;
    const int dz = recomputed() ? sources.front() : sources.back();
    const int apart = second_ == nullptr ? dz : (two ? sources.front() : extra());  // storage of dx

    Step first{.name = name_ + (norm_ != nullptr ? " sums" : " gradient"), .uses = sources};
    first.uses.insert(first.uses.end(), {mask_, sums_, write ? dz : -1, norm_ == nullptr ? apart : x_->forward,
                                         recomputed() ? y_->backward : -1, norm2_ != nullptr ? second_->forward : -1});
    for (const NormStatistics* norm : norms_)
      for (int storage : norm->forward_storages()) first.uses.push_back(storage);
    const int copy = norm_ == nullptr && second_ != nullptr ? apart : -1;
    s.add(std::move(first),
          [this, sources, dz, copy, write](const Slice& slice) { first_pass(slice, sources, write ? dz : -1, copy); });

    if (second_ != nullptr) second_->gradients.push_back(dz);
    x_->gradients.push_back(apart);
    if (norm_ == nullptr) return;

    Step finish{.name = name_ + " coefficients", .whole = true, .uses = {sums_}};
    for (const NormStatistics* norm : norms_) {
      for (int storage : norm->backward_storages()) finish.uses.push_back(storage);
      for (const std::string& parameter : norm->parameters()) finish.finishes.push_back(parameter);
    }
    s.add(std::move(finish), [this](const Slice&) {
      const auto* sums = context_.schedule->template at<double>(sums_);
      norm_->finish_backward(sums, 1);
      if (norm2_ != nullptr) norm2_->finish_backward(sums, 2);
    });

    Step second{.name = name_ + " gradient",
                .uses = {dz, apart, x_->forward, norm2_ != nullptr ? second_->forward : -1}};
    for (const NormStatistics* norm : norms_)
      for (int storage : norm->backward_storages()) second.uses.push_back(storage);
    s.add(std::move(second), [this, dz, apart, write](const Slice& slice) { second_pass(slice, dz, apart, write); });
  }

 private:
  // Whether y is recomputed. The result of a norm without a second operand is not kept for the backward pass. The
  // backward pass computes it again if the weight gradient of a convolution needs it.
  bool recomputed() const { return norm_ != nullptr && second_ == nullptr; }
  bool has_mask() const { return relu_ && !recomputed(); }

  void forward(const Slice& slice) const {
    const Schedule& s = *context_.schedule;
    const std::int64_t pixels = x_->pixels();
    for_each_unit(s.threads(), slice, context_.blocks(*y_), [&](std::int64_t image, std::int64_t block) {
      const std::int64_t at = block * pixels * context_.lanes();
      NormForward<T> a{};
      a.pixels = pixels;
      a.x = s.at<T>(x_->forward, slice, image) + at;
      if (norm_ != nullptr) a.norm = norm_->affine(image, block);
      if (second_ != nullptr) a.second = s.at<T>(second_->forward, slice, image) + at;
      if (norm2_ != nullptr) a.norm2 = norm2_->affine(image, block);
      a.relu = relu_;
      a.y = s.at<T>(y_->forward, slice, image) + at;
      if (mask_ >= 0) a.mask = s.at<std::uint8_t>(mask_, slice, image) + at / 8;
      context_.norm->forward(a);
    });
  }

  void first_pass(const Slice& slice, const std::vector<int>& sources, int dz, int dz2) const {
    const Schedule& s = *context_.schedule;
    const std::int64_t pixels = y_->pixels(), lanes = context_.lanes(), blocks = context_.blocks(*y_);
    for_each_unit(s.threads(), slice, blocks, [&](std::int64_t image, std::int64_t block) {
      const std::int64_t at = block * pixels * lanes;
      NormBackwardSums<T> a{};
      a.pixels = pixels;
      a.d0 = s.at<T>(sources[0], slice, image) + at;
      if (sources.size() > 1) a.d1 = s.at<T>(sources[1], slice, image) + at;
      if (mask_ >= 0) a.mask = s.at<std::uint8_t>(mask_, slice, image) + at / 8;
      a.relu = relu_;
      if (dz >= 0) a.dz = s.at<T>(dz, slice, image) + at;
      if (dz2 >= 0) a.dz2 = s.at<T>(dz2, slice, image) + at;
      if (norm_ != nullptr) {
        a.norm = norm_->affine(image, block);
        a.x = s.at<T>(x_->forward, slice, image) + at;
        a.sums = s.at<double>(sums_) + (image * blocks + block) * 3 * lanes;
        if (recomputed() && y_->backward >= 0) a.activation = s.at<T>(y_->backward, slice, image) + at;
      }
      if (norm2_ != nullptr) {
        a.mean2 = norm2_->affine(image, block).mean;
        a.x2 = s.at<T>(second_->forward, slice, image) + at;
      }
      context_.norm->backward_sums(a);
    });
  }

  void second_pass(const Slice& slice, int dz, int dx, bool masked) const {
    const Schedule& s = *context_.schedule;
    const std::int64_t pixels = y_->pixels(), lanes = context_.lanes();
    for_each_unit(s.threads(), slice, context_.blocks(*y_), [&](std::int64_t image, std::int64_t block) {
      const std::int64_t at = block * pixels * lanes;
      NormBackwardApply<T> a{};
      a.pixels = pixels;
      a.dz = s.at<T>(dz, slice, image) + at;
      a.relu = relu_ && !masked;
      a.x = s.at<T>(x_->forward, slice, image) + at;
      a.norm = norm_->affine(image, block);
      a.slope = norm_->slope(image, block);
      a.constant = norm_->constant(image, block);
      a.dx = s.at<T>(dx, slice, image) + at;
      if (norm2_ != nullptr) {
        a.x2 = s.at<T>(second_->forward, slice, image) + at;
        a.norm2 = norm2_->affine(image, block);
        a.slope2 = norm2_->slope(image, block);
        a.constant2 = norm2_->constant(image, block);
        a.dx2 = s.at<T>(dz, slice, image) + at;
      }
      context_.norm->backward_apply(a);
    });
  }

  ImageContext context_;
  std::string name_;
  Feature *x_, *second_, *y_;
  NormStatistics *norm_, *norm2_;             // null: none
  std::vector<const NormStatistics*> norms_;  // those that there are
  bool relu_;
  int mask_ = -1, sums_ = -1;
};

}  // namespace

std::unique_ptr<CpuOperation> make_norm(const ImageContext& context, const std::string& name, Feature* x,
                                        NormStatistics* norm, Feature* second, NormStatistics* norm2, bool relu,
                                        Feature* y) {
  return make_typed<NormOperation>(context, name, x, norm, second, norm2, relu, y);
}

}  // namespace ringtrain::cpu
