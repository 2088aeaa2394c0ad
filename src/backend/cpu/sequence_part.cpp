#include "backend/cpu/sequence_part.h"

#include <algorithm>

namespace ringtrain::cpu {
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
