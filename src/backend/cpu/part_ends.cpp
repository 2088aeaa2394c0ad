// The two ends of a part of a model: make_part_input() and make_part_output() of operations.h.
#include <algorithm>

#include "backend/cpu/operations.h"

namespace ringtrain::cpu {
namespace {

enum class PartValue { activation, gradient };

// The value at an end of a part, as it lies in memory.
class PartLayout {
 public:
  virtual ~PartLayout() = default;
  virtual bool whole() const = 0;                        // see Step
  virtual std::int64_t bytes(PartValue kind) const = 0;  // of the exchange for a micro-batch
  virtual int make_storage(std::string what, PartValue kind) const = 0;
  // Copies a slice from the canonical layout to a storage.
  virtual void fill(PartValue kind, const Slice& slice, const std::byte* from, int storage) const = 0;
  // Copies the sum of storages to the canonical layout.
  virtual void give(PartValue kind, const Slice& slice, const std::vector<int>& storages, std::byte* to) const = 0;
};

template <class T>
class ImageLayout : public PartLayout {
 public:
  ImageLayout(const ImageContext& context, const Feature* feature) : context_(context), feature_(feature) {}

  bool whole() const override { return false; }
  std::int64_t bytes(PartValue kind) const override {
    return context_.schedule->samples() * feature_->shape.size() * element_bytes(kind);
  }
  int make_storage(std::string what, PartValue kind) const override {
    const std::int64_t bytes = is_fp32(kind) ? feature_->shape.size() * float_bytes : context_.bytes<T>(*feature_);
    return context_.schedule->per_sample(std::move(what), bytes);
  }
  void fill(PartValue kind, const Slice& slice, const std::byte* from, int storage) const override {
    is_fp32(kind) ? fill_as<float>(slice, from, storage) : fill_as<T>(slice, from, storage);
  }
  void give(PartValue kind, const Slice& slice, const std::vector<int>& storages, std::byte* to) const override {
    is_fp32(kind) ? give_as<float>(slice, storages, to) : give_as<T>(slice, storages, to);
  }

 private:
  bool is_fp32(PartValue kind) const { return kind == PartValue::gradient && feature_->vector; }
  std::int64_t element_bytes(PartValue kind) const {
    return static_cast<std::int64_t>(is_fp32(kind) ? sizeof(float) : sizeof(T));
  }

  // Fills the channels after the last one with zeros.
  template <class Element>
  void fill_as(const Slice& slice, const std::byte* from, int storage) const {
    const Schedule& s = *context_.schedule;
    const auto* values = reinterpret_cast<const Element*>(from);
    const std::int64_t size = feature_->shape.size(), pixels = feature_->pixels(), lanes = context_.lanes();
    for_each_unit(s.threads(), slice, feature_->vector ? 1 : context_.blocks(*feature_),
                  [&](std::int64_t image, std::int64_t block) {
                    Element* to = s.at<Element>(storage, slice, image);
                    if (feature_->vector) {
                      std::copy_n(values + image * size, size, to);
                      return;
                    }
                    to += block * pixels * lanes;
                    const std::int64_t first = block * lanes;
                    for (std::int64_t c = 0; c < lanes; ++c)
                      for (std::int64_t p = 0; p < pixels; ++p)
                        to[p * lanes + c] = first + c < feature_->shape.channels
                                                ? values[image * size + (first + c) * pixels + p]
                                                : from_float<Element>(0.0f);
                  });
  }

  template <class Element>
  void give_as(const Slice& slice, const std::vector<int>& storages, std::byte* to) const {
    const Schedule& s = *context_.schedule;
    auto* values = reinterpret_cast<Element*>(to);
    const std::int64_t size = feature_->shape.size(), pixels = feature_->pixels(), lanes = context_.lanes();
    for_each_unit(s.threads(), slice, feature_->vector ? 1 : context_.blocks(*feature_),
                  [&](std::int64_t image, std::int64_t block) {
                    for (std::size_t which = 0; which < storages.size(); ++which) {
                      const Element* from = s.at<Element>(storages[which], slice, image);
                      const auto put = [&](std::int64_t at, Element value) {
                        Element& place = values[image * size + at];
                        place = which == 0 ? value : from_float<Element>(to_float(place) + to_float(value));
                      };
                      if (feature_->vector) {
                        for (std::int64_t i = 0; i < size; ++i) put(i, from[i]);
                        continue;
                      }
                      const std::int64_t first = block * lanes, end = std::min(lanes, feature_->shape.channels - first);
                      for (std::int64_t c = 0; c < end; ++c)
                        for (std::int64_t p = 0; p < pixels; ++p)
                          put((first + c) * pixels + p, from[(block * pixels + p) * lanes + c]);
                    }
                  });
  }

  ImageContext context_;
  const Feature* feature_;
};

template <class T>
class SequenceLayout : public PartLayout {
 public:
  SequenceLayout(const SequenceContext& context, const Feature* feature) : context_(context), feature_(feature) {}

  bool whole() const override { return true; }
  std::int64_t bytes(PartValue kind) const override {
    return context_.blocks.rows * context_.blocks.sequence * features() * element_bytes(kind);
  }
  int make_storage(std::string what, PartValue kind) const override {
    return context_.schedule->fixed(std::move(what), context_.blocks.positions() * features() * element_bytes(kind));
  }
  void fill(PartValue kind, const Slice&, const std::byte* from, int storage) const override {
    kind == PartValue::gradient ? fill_as<float>(from, storage) : fill_as<T>(from, storage);
  }
  // A sequence has one consumer.
  void give(PartValue kind, const Slice&, const std::vector<int>& storages, std::byte* to) const override {
    kind == PartValue::gradient ? give_as<float>(storages.front(), to) : give_as<T>(storages.front(), to);
  }

 private:
  std::int64_t features() const { return feature_->shape.channels; }
  static std::int64_t element_bytes(PartValue kind) {
    return static_cast<std::int64_t>(kind == PartValue::gradient ? sizeof(float) : sizeof(T));
  }

  // Calls body(row, position, place) for all positions: `position` is the number of (row, time) in the exchange, and
  // `place` the index of its first element in memory.
  template <class Body>
  void for_each_position(const Body& body) const {
    const RowBlocks& b = context_.blocks;
    for_each_block(b, [&](std::int64_t block, int) {
      for (std::int64_t t = 0; t < b.sequence; ++t)
        for (std::int64_t r = 0; r < b.block_rows; ++r) {
          const std::int64_t row = block * b.block_rows + r;
          body(row, row * b.sequence + t, ((block * b.sequence + t) * b.block_rows + r) * feature_->row_elements);
        }
    });
  }

  // Rows of padding become zero.
  template <class Element>
  void fill_as(const std::byte* from, int storage) const {
    const auto* values = reinterpret_cast<const Element*>(from);
    auto* to = context_.memory<Element>(storage);
    for_each_position([&](std::int64_t row, std::int64_t position, std::int64_t place) {
      if (row < context_.blocks.rows)
        std::copy_n(values + position * features(), features(), to + place);
      else
        std::fill_n(to + place, features(), Element{});
    });
  }

  template <class Element>
  void give_as(int storage, std::byte* to) const {
    const auto* from = context_.memory<Element>(storage);
    auto* values = reinterpret_cast<Element*>(to);
    for_each_position([&](std::int64_t row, std::int64_t position, std::int64_t place) {
      if (row < context_.blocks.rows) std::copy_n(from + place, features(), values + position * features());
    });
  }

  SequenceContext context_;
  const Feature* feature_;
};

// Makes ImageLayout or SequenceLayout for the type of the activations.
template <template <class> class Layout, class Context>
std::unique_ptr<PartLayout> make_layout(const Context& context, const Feature* feature) {
  if (context.bf16) return std::make_unique<Layout<BFloat16>>(context, feature);
  return std::make_unique<Layout<float>>(context, feature);
}

class PartInputOperation : public CpuOperation {
 public:
  PartInputOperation(const OperationContext& context, std::unique_ptr<PartLayout> layout, Feature* y, PartBytes& bytes)
      : context_(context), layout_(std::move(layout)), y_(y) {
    bytes.activations_in = layout_->bytes(PartValue::activation);
    bytes.gradients_out = layout_->bytes(PartValue::gradient);
  }

  void forward_steps() override {
    context_.schedule->add(
        {.name = "activations arrive", .whole = layout_->whole(), .uses = {y_->forward}}, [this](const Slice& slice) {
          layout_->fill(PartValue::activation, slice, context_.pass->traffic.activations_in, y_->forward);
        });
  }

  void backward_steps() override {
    context_.schedule->add({.name = "gradients leave", .whole = layout_->whole(), .uses = y_->gradients},
                           [this, sources = y_->gradients](const Slice& slice) {
                             layout_->give(PartValue::gradient, slice, sources, context_.pass->traffic.gradients_out);
                           });
  }

 private:
  OperationContext context_;
  std::unique_ptr<PartLayout> layout_;
  Feature* y_;
};

class PartOutputOperation : public CpuOperation {
 public:
  PartOutputOperation(const OperationContext& context, std::unique_ptr<PartLayout> layout, Feature* x, PartBytes& bytes)
      : context_(context), layout_(std::move(layout)), x_(x) {
    bytes.activations_out = layout_->bytes(PartValue::activation);
    bytes.gradients_in = layout_->bytes(PartValue::gradient);
  }

  void forward_steps() override {
    context_.schedule->add(
        {.name = "activations leave", .whole = layout_->whole(), .uses = {x_->forward}}, [this](const Slice& slice) {
          layout_->give(PartValue::activation, slice, {x_->forward}, context_.pass->traffic.activations_out);
        });
  }

  void backward_steps() override {
    const int target = layout_->make_storage("gradient of the part after", PartValue::gradient);
    x_->gradients.push_back(target);
    context_.schedule->add({.name = "gradients arrive", .whole = layout_->whole(), .uses = {target}},
                           [this, target](const Slice& slice) {
                             layout_->fill(PartValue::gradient, slice, context_.pass->traffic.gradients_in, target);
                           });
  }

 private:
  OperationContext context_;
  std::unique_ptr<PartLayout> layout_;
  Feature* x_;
};

}  // namespace

std::unique_ptr<CpuOperation> make_part_input(const ImageContext& context, Feature* y, PartBytes& bytes) {
  auto layout = make_layout<ImageLayout>(context, y);
  y->forward = y->backward = layout->make_storage("activations of the part before", PartValue::activation);
  return std::make_unique<PartInputOperation>(context, std::move(layout), y, bytes);
}

// The layer that reads y makes its memory.
std::unique_ptr<CpuOperation> make_part_input(const SequenceContext& context, Feature* y, PartBytes& bytes) {
  return std::make_unique<PartInputOperation>(context, make_layout<SequenceLayout>(context, y), y, bytes);
}

std::unique_ptr<CpuOperation> make_part_output(const ImageContext& context, Feature* x, PartBytes& bytes) {
  return std::make_unique<PartOutputOperation>(context, make_layout<ImageLayout>(context, x), x, bytes);
}

std::unique_ptr<CpuOperation> make_part_output(const SequenceContext& context, Feature* x, PartBytes& bytes) {
  auto layout = make_layout<SequenceLayout>(context, x);
  x->row_elements = x->shape.channels;
  x->forward = layout->make_storage("output of the part", PartValue::activation);
  return std::make_unique<PartOutputOperation>(context, std::move(layout), x, bytes);
}

}  // namespace ringtrain::cpu
