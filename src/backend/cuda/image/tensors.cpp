#include "backend/cuda/image/tensors.h"

#include <algorithm>
#include <utility>

namespace ringtrain::cuda {

std::int64_t TensorLayout::own_elements() const {
  return padded_outer * (windows ? 1 : taps) * padded_inner;
}

Tensor TensorGroup::add(const Parameter& parameter, const TensorLayout& layout) {
  const auto [place, added] = known_.try_emplace(parameter.name, Tensor{storage_, elements_ * bytes_of(type_)});
  if (!added) return place->second;
  places_.push_back({.flat_offset = parameter.offset,
                     .own_offset = elements_,
                     .outer = layout.outer,
                     .inner = static_cast<int>(layout.inner),
                     .taps = static_cast<int>(layout.taps),
                     .padded = static_cast<int>(layout.padded_inner),
                     .windows = layout.windows});
  names_.push_back(parameter.name);
  elements_ += round_up(layout.own_elements(), Schedule::alignment / bytes_of(type_));
  schedule_.resize(storage_, elements_ * bytes_of(type_));
  return place->second;
}

GradientsHome::GradientsHome(Schedule& schedule, std::int64_t segment_elements, Send send)
    : schedule_(schedule), send_(std::move(send)) {
  constexpr std::int64_t worth_a_launch = std::int64_t{4} << 20;
  // The limit is at most a quarter of a segment, so that no bucket waits long for its last tensor.
  enough_ = segment_elements > 0 ? std::min(worth_a_launch, segment_elements / 4) : worth_a_launch;
}

Tensor GradientsHome::add(const Parameter& parameter, const TensorLayout& layout, Type type) {
  if (open_ != nullptr && open_->type() != type) flush();
  if (open_ == nullptr) open_ = std::make_unique<TensorGroup>(schedule_, schedule_.buffer("weight gradients", 0), type);
  return open_->add(parameter, layout);
}

void GradientsHome::added() {
  if (open_->elements() >= enough_) flush();
}

void GradientsHome::flush() {
  if (open_ == nullptr) return;
  send_(*open_);
  open_ = nullptr;
}

}  // namespace ringtrain::cuda
