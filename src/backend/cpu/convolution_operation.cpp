// Convolutions of the graph, and the pixels that the first one reads: make_convolution() and make_pixels() of
// operations.h.
#include <algorithm>

#include "backend/cpu/convolution.h"
#include "backend/cpu/operations.h"

namespace ringtrain::cpu {
namespace {

template <class T>
class PixelOperation : public CpuOperation {
 public:
  PixelOperation(const ImageContext& context, const ImageInput& node, Feature* y)
      : context_(context), y_(y), channels_(node.channels), table_(static_cast<std::size_t>(node.channels) * 256) {
    // The arithmetic of torchvision's ToTensor and Normalize, in fp32.
    for (std::size_t c = 0; c < static_cast<std::size_t>(channels_); ++c)
      for (std::size_t v = 0; v < 256; ++v)
        table_[c * 256 + v] = from_float<T>((static_cast<float>(v) / 255.0f - static_cast<float>(node.mean[c])) /
                                            static_cast<float>(node.std[c]));
    y_->forward = y_->backward =
        context_.schedule->per_sample("pixels", y_->shape.size() * static_cast<std::int64_t>(sizeof(T)));
  }

  void forward_steps() override {
    context_.schedule->add({.name = "pixels", .uses = {y_->forward}}, [this](const Slice& slice) {
      const Schedule& s = *context_.schedule;
      const std::int64_t rows = y_->shape.height, width = y_->shape.width;
      const std::uint8_t* images = context_.pass->input.inputs;
      for_each_unit(s.threads(), slice, rows, [&](std::int64_t image, std::int64_t row) {
        const std::int64_t pixel = row * width;
        context_.image->pixels(PixelRows<T>{
            width, channels_, images + (image * rows * width + pixel) * channels_, table_.data(),
            s.at<T>(y_->forward, slice, image) + pixel * y_->pixel_stride, y_->pixel_stride, y_->channel_stride});
      });
    });
  }

  void backward_steps() override {}

 private:
  ImageContext context_;
  Feature* y_;
  std::int64_t channels_;
  std::vector<T> table_;  // [channels][256]
};

ConvolutionShape shape_of(const ImageContext& context, const Convolution& node, bool pixels, const Feature& x,
                          const Feature& y) {
  return {.input = node.input,
          .output = node.output,
          .in_height = x.shape.height,
          .in_width = x.shape.width,
          .out_height = y.shape.height,
          .out_width = y.shape.width,
          .kernel = node.kernel,
          .stride = node.stride,
          .padding = node.padding,
          .bias = !node.bias.empty(),
          .pixels = pixels,
          .bf16 = context.bf16,
          .lanes = context.norm->lanes};
}

template <class T>
class ConvolutionOperation : public CpuOperation {
 public:
  ConvolutionOperation(const ImageContext& context, const Convolution& node, bool relu, bool pixels, bool behind_norm,
                       Feature* x, Feature* y)
      : context_(context),
        weight_(context.parameters->find(node.weight)),
        bias_(node.bias.empty() ? Parameter{} : context.parameters->find(node.bias)),
        relu_(relu),
        pixels_(pixels),
        behind_norm_(behind_norm),
        x_(x),
        y_(y),
        primitives_(shape_of(context, node, pixels, *x, *y), context.training, context.schedule->threads()),
        name_(node.weight.substr(0, node.weight.rfind('.'))) {
    Schedule& s = *context_.schedule;
    x_->read_again = true;
    y_->forward = y_->backward = s.per_sample(name_ + " output", context_.bytes<T>(*y_));
    weights_ = s.lasting(name_ + " weights", 0);
    scratch_ = s.fixed(name_ + " scratch", 0);
    if (!context_.training) return;
    if (!pixels_) data_scratch_ = s.fixed(name_ + " data scratch", 0);
    weights_scratch_ = s.fixed(name_ + " weight gradient", 0);
  }

  void forward_steps() override {
    Step step{.name = name_,
              .uses = {x_->forward, y_->forward, scratch_},
              .least_samples = primitives_.least_images(),
              .flops_per_sample = primitives_.flops(1)};
    step.prepare = [this](std::int64_t images) {
      primitives_.make_forward(images);
      if (pixels_) {
        x_->pixel_stride = primitives_.pixel_stride();
        x_->channel_stride = primitives_.channel_stride();
      }
      context_.schedule->resize(weights_, primitives_.weight_bytes());
      context_.schedule->resize(scratch_, primitives_.forward_scratch_bytes());
    };
    context_.schedule->add(std::move(step), [this](const Slice& slice) {
      const Schedule& s = *context_.schedule;
      primitives_.forward(s.at<T>(x_->forward, slice, slice.first), s.at<T>(y_->forward, slice, slice.first),
                          s.at<char>(scratch_));
      if (relu_) rectify(slice);
    });
  }

  void backward_steps() override {
    Schedule& s = *context_.schedule;
    const std::vector<int> sources = y_->gradients;
    const int gradient = sources.front();
    if (sources.size() > 1 || relu_) {
      Step step{.name = name_ + " gradient", .uses = sources};
      if (relu_) step.uses.push_back(y_->forward);
      s.add(std::move(step), [this, sources](const Slice& slice) { combine(slice, sources); });
    }
    if (!pixels_) {
      const int target = s.per_sample(name_ + " input gradient", context_.bytes<T>(*x_));
      x_->gradients.push_back(target);
      Step step{.name = name_ + " data",
                .uses = {gradient, target, data_scratch_},
                .least_samples = primitives_.least_images(),
                .flops_per_sample = primitives_.flops(1)};
      step.prepare = [this](std::int64_t images) {
        primitives_.make_backward_data(images);
        context_.schedule->resize(data_scratch_, primitives_.data_scratch_bytes());
      };
      s.add(std::move(step), [this, gradient, target](const Slice& slice) {
        const Schedule& schedule = *context_.schedule;
        auto* scratch = schedule.at<char>(data_scratch_);
        if (slice.first == 0) primitives_.prepare_data(scratch);
        primitives_.backward_data(schedule.at<T>(gradient, slice, slice.first),
                                  schedule.at<T>(target, slice, slice.first), scratch);
      });
    }
    Step step{.name = name_ + " weights",
              .whole = true,
              .uses = {x_->backward, gradient, weights_scratch_},
              .finishes = {weight_.name},
              .flops_per_sample = primitives_.flops(1),
              .waits = behind_norm_};
    if (bias_.count > 0) step.finishes.push_back(bias_.name);
    step.prepare = [this](std::int64_t images) {
      primitives_.make_backward_weights(images);
      context_.schedule->resize(weights_scratch_, primitives_.weights_scratch_bytes());
    };
    s.add(std::move(step), [this, gradient](const Slice& slice) {
      const Schedule& schedule = *context_.schedule;
      const Pass& pass = *context_.pass;
      primitives_.backward_weights(*context_.image, schedule.at<T>(x_->backward, slice, 0),
                                   schedule.at<T>(gradient, slice, 0), schedule.at<char>(weights_scratch_),
                                   pass.gradients + weight_.offset, pass.gradients + bias_.offset, pass.accumulate);
    });
  }

  void bind() override { primitives_.bind(context_.schedule->template at<char>(weights_)); }
  void set_weights(const float* flat) override {
    primitives_.set_weights(flat + weight_.offset, bias_.count > 0 ? flat + bias_.offset : nullptr);
  }

 private:
  // oneDNN's own ReLU turns NaNs into zeros, and would hide a broken channel. It is therefore not used here.
  void rectify(const Slice& slice) const {
    const Schedule& s = *context_.schedule;
    for_each_unit(s.threads(), slice, context_.blocks(*y_), [&](std::int64_t image, std::int64_t block) {
      NormForward<T> a{};
      a.pixels = y_->pixels();
      a.x = a.y = s.at<T>(y_->forward, slice, image) + block * a.pixels * context_.lanes();
      a.relu = true;
      context_.norm->forward(a);
    });
  }

  // Adds the gradients of all consumers. With a ReLU, gradients pass only where its output is positive.
  void combine(const Slice& slice, const std::vector<int>& sources) const {
    const Schedule& s = *context_.schedule;
    const std::int64_t pixels = y_->pixels();
    for_each_unit(s.threads(), slice, context_.blocks(*y_), [&](std::int64_t image, std::int64_t block) {
      const std::int64_t at = block * pixels * context_.lanes();
      NormBackwardSums<T> a{};
      a.pixels = pixels;
      a.d0 = s.at<T>(sources[0], slice, image) + at;
      if (sources.size() > 1) a.d1 = s.at<T>(sources[1], slice, image) + at;
      if (relu_) a.values = s.at<T>(y_->forward, slice, image) + at;
      a.dz = s.at<T>(sources[0], slice, image) + at;
      context_.norm->backward_sums(a);
    });
  }

  ImageContext context_;
  Parameter weight_, bias_;
  bool relu_, pixels_, behind_norm_;
  Feature *x_, *y_;
  ConvolutionPrimitives primitives_;
  int weights_ = -1, scratch_ = -1, data_scratch_ = -1, weights_scratch_ = -1;
  std::string name_;
};

}  // namespace

std::unique_ptr<CpuOperation> make_pixels(const ImageContext& context, const ImageInput& node, Feature* y) {
  return make_typed<PixelOperation>(context, node, y);
}
std::unique_ptr<CpuOperation> make_convolution(const ImageContext& context, const Convolution& node, bool relu,
                                               bool pixels, bool behind_norm, Feature* x, Feature* y) {
  return make_typed<ConvolutionOperation>(context, node, relu, pixels, behind_norm, x, y);
}

}  // namespace ringtrain::cpu
