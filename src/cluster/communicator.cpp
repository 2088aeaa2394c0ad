#include "cluster/communicator.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "cluster/waiting.h"

namespace ringtrain {

GradientRounding gradient_rounding(std::int64_t trained_elements, std::int64_t targets, float loss_scale) {
  const int of_targets = std::min(12, std::ilogb(static_cast<double>(std::max<std::int64_t>(1, targets))));
  const int missing = std::max(0, of_targets - std::ilogb(std::max(1.0f, loss_scale)));
  return {trained_elements, std::ldexp(1.0f, missing)};
}

void Pending::finish() {
  for (Waiter waiter; !done();) waiter.pause();
}

void Communicator::sum(std::span<float> values) {
  start_sum(values)->finish();
}
void Communicator::sum(std::span<double> values) {
  start_sum(values)->finish();
}

void Communicator::broadcast_vector(std::span<float> values, int root) {
  broadcast(std::as_writable_bytes(values), root);
}

void Communicator::check_pieces(std::span<const float> values, std::int64_t piece) const {
  if (piece < 1 ? !values.empty() : std::ssize(values) > piece * size())
    throw Error(cat(values.size(), " values do not fit into ", size(), " pieces of ", piece));
}

std::string broadcast_string(Communicator& communicator, std::string text, int root) {
  std::uint64_t length = text.size();
  communicator.broadcast(value_bytes(length), root);
  text.resize(length);
  communicator.broadcast(std::as_writable_bytes(std::span(text.data(), text.size())), root);
  return text;
}

}  // namespace ringtrain
