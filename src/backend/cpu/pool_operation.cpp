// Max pooling, global average pooling, and the conversion of maps to vectors: make_max_pool() and make_vector() of
// operations.h.
#include <algorithm>

#include "backend/cpu/operations.h"
#include "base/error.h"

namespace ringtrain::cpu {
namespace {

template <class T>
class MaxPoolOperation : public CpuOperation {
 public:
  MaxPoolOperation(const ImageContext& context, const MaxPool& node, Feature* x, Feature* y)
      : context_(context), node_(node), x_(x), y_(y) {
    if (node.kernel > 15)
      throw Error(cat("max pooling has a window of ", node.kernel, " x ", node.kernel,
                      "; the CPU backend supports windows up to 15 x 15"));
    y_->forward = y_->backward = context_.schedule->per_sample("pooled maps", context_.bytes<T>(*y_));
    if (context_.training)
      place_ = context_.schedule->per_sample("pooled places", context_.padded_channels(*y_) * y_->pixels());
  }

  void forward_steps() override {
    context_.schedule->add(
        {.name = "max pool", .uses = {x_->forward, y_->forward, place_}}, [this](const Slice& slice) {
          const Schedule& s = *context_.schedule;
          for_each_unit(s.threads(), slice, context_.blocks(*x_), [&](std::int64_t image, std::int64_t block) {
            MaxPoolUnit<T> a = unit(slice, image, block);
            a.x = s.at<T>(x_->forward, slice, image) + block * x_->pixels() * context_.lanes();
            a.y = s.at<T>(y_->forward, slice, image) + block * y_->pixels() * context_.lanes();
            context_.image->max_pool(a);
          });
        });
  }

  void backward_steps() override {
    Schedule& s = *context_.schedule;
    const std::vector<int> sources = y_->gradients;
    const int target = s.per_sample("max pool gradient", context_.bytes<T>(*x_));
    x_->gradients.push_back(target);
    Step step{.name = "max pool gradient", .uses = sources};
    step.uses.push_back(place_);
    step.uses.push_back(target);
    s.add(std::move(step), [this, sources, target](const Slice& slice) {
      const Schedule& schedule = *context_.schedule;
      for_each_unit(schedule.threads(), slice, context_.blocks(*x_), [&](std::int64_t image, std::int64_t block) {
        MaxPoolUnit<T> a = unit(slice, image, block);
        const std::int64_t at = block * y_->pixels() * context_.lanes();
        a.d0 = schedule.at<T>(sources[0], slice, image) + at;
        if (sources.size() > 1) a.d1 = schedule.at<T>(sources[1], slice, image) + at;
        a.dx = schedule.at<T>(target, slice, image) + block * x_->pixels() * context_.lanes();
        context_.image->max_pool_backward(a);
      });
    });
  }

 private:
  MaxPoolUnit<T> unit(const Slice& slice, std::int64_t image, std::int64_t block) const {
    const Schedule& s = *context_.schedule;
    MaxPoolUnit<T> a{};
    a.height = x_->shape.height;
    a.width = x_->shape.width;
    a.out_height = y_->shape.height;
    a.out_width = y_->shape.width;
    a.kernel = node_.kernel;
    a.stride = node_.stride;
    a.padding = node_.padding;
    if (place_ >= 0) a.place = s.at<std::uint8_t>(place_, slice, image) + block * y_->pixels() * context_.lanes();
    return a;
  }

  ImageContext context_;
  MaxPool node_;
  Feature *x_, *y_;
  int place_ = -1;
};

// Global average pooling, or flattening.
template <class T>
class VectorOperation : public CpuOperation {
 public:
  VectorOperation(const ImageContext& context, bool average, Feature* x, Feature* y)
      : context_(context), average_(average), x_(x), y_(y) {
    y_->vector = true;
    y_->forward = y_->backward = context_.schedule->per_sample("vector of features", context_.bytes<T>(*y_));
  }

  void forward_steps() override {
    context_.schedule->add(
        {.name = average_ ? "average pool" : "flatten", .uses = {x_->forward, y_->forward}},
        [this](const Slice& slice) {
          const Schedule& s = *context_.schedule;
          for_each_unit(s.threads(), slice, context_.blocks(*x_), [&](std::int64_t image, std::int64_t block) {
            const T* from = s.at<T>(x_->forward, slice, image) + block * x_->pixels() * context_.lanes();
            T* to = s.at<T>(y_->forward, slice, image) + block * context_.lanes() * values();
            if (average_)
              context_.image->average(x_->pixels(), channels(block), from, to);
            else
              context_.image->flatten(x_->pixels(), channels(block), from, to);
          });
        });
  }

  void backward_steps() override {
    Schedule& s = *context_.schedule;
    const int source = y_->gradients.front();
    const int target = s.per_sample("gradient of the last maps", context_.bytes<T>(*x_));
    x_->gradients.push_back(target);
    s.add({.name = average_ ? "average pool gradient" : "flatten gradient", .uses = {source, target}},
          [this, source, target](const Slice& slice) {
            const Schedule& schedule = *context_.schedule;
            for_each_unit(schedule.threads(), slice, context_.blocks(*x_), [&](std::int64_t image, std::int64_t block) {
              const float* from = schedule.at<float>(source, slice, image) + block * context_.lanes() * values();
              T* to = schedule.at<T>(target, slice, image) + block * x_->pixels() * context_.lanes();
              if (average_)
                context_.image->average_backward(x_->pixels(), channels(block), from, to);
              else
                context_.image->flatten_backward(x_->pixels(), channels(block), from, to);
            });
          });
  }

 private:
  // The number of channels that exist in a block, and the number of values that a channel gives to the vector.
  std::int64_t channels(std::int64_t block) const {
    return std::min(context_.lanes(), x_->shape.channels - block * context_.lanes());
  }
  std::int64_t values() const { return average_ ? 1 : x_->pixels(); }

  ImageContext context_;
  bool average_;
  Feature *x_, *y_;
};

}  // namespace

std::unique_ptr<CpuOperation> make_max_pool(const ImageContext& context, const MaxPool& node, Feature* x, Feature* y) {
  return make_typed<MaxPoolOperation>(context, node, x, y);
}
std::unique_ptr<CpuOperation> make_vector(const ImageContext& context, bool average, Feature* x, Feature* y) {
  return make_typed<VectorOperation>(context, average, x, y);
}

}  // namespace ringtrain::cpu
