#include "backend/cpu/part_ends.h"

#include <algorithm>

namespace ringtrain::cpu {

template <class T>
std::int64_t PartOperation<T>::activation_bytes() const {
  return context_.schedule->images() * feature_->shape.size() * static_cast<std::int64_t>(sizeof(T));
}
template <class T>
std::int64_t PartOperation<T>::gradient_bytes() const {
  const auto element = static_cast<std::int64_t>(feature_->vector ? sizeof(float) : sizeof(T));
  return context_.schedule->images() * feature_->shape.size() * element;
}

// Fills the channels after the last one with zeros.
template <class T>
template <class Element>
void PartOperation<T>::fill(const Slice& slice, const std::byte* from, int storage) const {
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

template <class T>
template <class Element>
void PartOperation<T>::give(const Slice& slice, const std::vector<int>& storages, std::byte* to) const {
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

template <class T>
PartInputOperation<T>::PartInputOperation(const ImageContext& context, Feature* y) : PartOperation<T>(context, y) {
  y->forward = y->backward =
      context.schedule->per_image("activations of the part before", context.template bytes<T>(*y));
}

template <class T>
void PartInputOperation<T>::forward_steps() {
  Step step{.name = "activations arrive", .uses = {this->feature_->forward}};
  step.run = [this](const Slice& slice) {
    this->template fill<T>(slice, this->context_.pass->traffic.activations_in, this->feature_->forward);
  };
  this->context_.schedule->add(std::move(step));
}

template <class T>
void PartInputOperation<T>::backward_steps() {
  const std::vector<int> sources = this->feature_->gradients;
  Step step{.name = "gradients leave", .uses = sources};
  step.run = [this, sources](const Slice& slice) {
    std::byte* to = this->context_.pass->traffic.gradients_out;
    if (this->feature_->vector)
      this->template give<float>(slice, sources, to);
    else
      this->template give<T>(slice, sources, to);
  };
  this->context_.schedule->add(std::move(step));
}

template <class T>
void PartOutputOperation<T>::forward_steps() {
  Step step{.name = "activations leave", .uses = {this->feature_->forward}};
  step.run = [this](const Slice& slice) {
    this->template give<T>(slice, {this->feature_->forward}, this->context_.pass->traffic.activations_out);
  };
  this->context_.schedule->add(std::move(step));
}

template <class T>
void PartOutputOperation<T>::backward_steps() {
  Schedule& s = *this->context_.schedule;
  const bool vector = this->feature_->vector;
  const std::int64_t bytes = vector ? this->feature_->shape.size() * static_cast<std::int64_t>(sizeof(float))
                                    : this->context_.template bytes<T>(*this->feature_);
  const int target = s.per_image("gradient of the part after", bytes);
  this->feature_->gradients.push_back(target);
  Step step{.name = "gradients arrive", .uses = {target}};
  step.run = [this, target, vector](const Slice& slice) {
    const std::byte* from = this->context_.pass->traffic.gradients_in;
    if (vector)
      this->template fill<float>(slice, from, target);
    else
      this->template fill<T>(slice, from, target);
  };
  s.add(std::move(step));
}

template class PartOperation<float>;
template class PartOperation<BFloat16>;
template class PartInputOperation<float>;
template class PartInputOperation<BFloat16>;
template class PartOutputOperation<float>;
template class PartOutputOperation<BFloat16>;

namespace {

// Calls body(row, time, place): `place` is the position's number in [blocks][time][block_rows].
template <class Body>
void for_each_position(const RowBlocks& b, const Body& body) {
  for_each_block(b, [&](std::int64_t block, int) {
    for (std::int64_t t = 0; t < b.sequence; ++t)
      for (std::int64_t r = 0; r < b.block_rows; ++r)
        body(block * b.block_rows + r, t, (block * b.sequence + t) * b.block_rows + r);
  });
}

template <class Element>
std::int64_t bytes_of(const RowBlocks& blocks, std::int64_t features) {
  return blocks.rows * blocks.sequence * features * static_cast<std::int64_t>(sizeof(Element));
}

// `ld` is the distance in elements between positions of the program's buffer. Rows of padding become zero.
template <class Element>
void fill(const RowBlocks& blocks, std::int64_t features, const std::byte* from, Element* to, std::int64_t ld) {
  const auto* values = reinterpret_cast<const Element*>(from);
  for_each_position(blocks, [&](std::int64_t row, std::int64_t t, std::int64_t place) {
    if (row < blocks.rows)
      std::copy_n(values + (row * blocks.sequence + t) * features, features, to + place * ld);
    else
      std::fill_n(to + place * ld, features, Element{});
  });
}

template <class Element>
void give(const RowBlocks& blocks, std::int64_t features, const Element* from, std::int64_t ld, std::byte* to) {
  auto* values = reinterpret_cast<Element*>(to);
  for_each_position(blocks, [&](std::int64_t row, std::int64_t t, std::int64_t place) {
    if (row < blocks.rows) std::copy_n(from + place * ld, features, values + (row * blocks.sequence + t) * features);
  });
}

}  // namespace

template <class T>
std::int64_t SequenceInput<T>::activation_bytes() const {
  return bytes_of<T>(blocks_, features_);
}
template <class T>
std::int64_t SequenceInput<T>::gradient_bytes() const {
  return bytes_of<float>(blocks_, features_);
}

template <class T>
void SequenceInput<T>::bind(const Arena& arena, const Port& port) {
  port_ = port;
  arena.place(input_, port.buffer);
  arena.place(gradient_, port.gradient);
}

template <class T>
void SequenceInput<T>::arrive(const std::byte* activations) const {
  fill<T>(blocks_, features_, activations, input_, port_.ld);
}

template <class T>
void SequenceInput<T>::leave(std::byte* gradients) const {
  give<float>(blocks_, features_, gradient_, port_.gradient_ld, gradients);
}

template <class T>
std::int64_t SequenceOutput<T>::activation_bytes() const {
  return bytes_of<T>(blocks_, features_);
}
template <class T>
std::int64_t SequenceOutput<T>::gradient_bytes() const {
  return bytes_of<float>(blocks_, features_);
}

template <class T>
void SequenceOutput<T>::plan(ArenaPlan& arena, int forward, int backward) {
  const std::int64_t elements = blocks_.positions() * features_;
  input_buffer_ =
      arena.add("output of the part", elements * static_cast<std::int64_t>(sizeof(T)), forward - 1, forward);
  if (training_)
    gradient_buffer_ = arena.add("gradient of the part's output", elements * static_cast<std::int64_t>(sizeof(float)),
                                 backward, backward + 1);
}

template <class T>
void SequenceOutput<T>::bind(const Arena& arena) {
  arena.place(input_, input_buffer_);
  arena.place(gradient_, gradient_buffer_);
}

template <class T>
void SequenceOutput<T>::forward(Pass& pass) {
  give<T>(blocks_, features_, input_, features_, pass.traffic.activations_out);
}

template <class T>
void SequenceOutput<T>::backward(const Pass& pass, float*, bool, const std::function<void()>&) {
  fill<float>(blocks_, features_, pass.traffic.gradients_in, gradient_, features_);
}

template class SequenceInput<float>;
template class SequenceInput<BFloat16>;
template class SequenceOutput<float>;
template class SequenceOutput<BFloat16>;

}  // namespace ringtrain::cpu
