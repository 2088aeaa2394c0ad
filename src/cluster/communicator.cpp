#include "cluster/communicator.h"

#include <algorithm>
#include <cmath>

#include "backend/group_ranks.h"
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

void wait(Pending& pending) {
  pending.finish();
}

void Communicator::sum(std::span<float> values) {
  wait(*start_sum(values));
}
void Communicator::sum(std::span<double> values) {
  wait(*start_sum(values));
}

void Communicator::broadcast_vector(std::span<float> values, int root) {
  broadcast(std::as_writable_bytes(values), root);
}

std::unique_ptr<GroupRanks> Communicator::share_groups(int span) {
  throw Error(cat(describe(), " cannot share batch norm's groups among ", span, " ranks"),
              "use as many ranks as divide the virtual workers");
}

std::string broadcast_string(Communicator& communicator, std::string text, int root) {
  std::uint64_t length = text.size();
  communicator.broadcast(std::as_writable_bytes(std::span(&length, 1)), root);
  text.resize(length);
  communicator.broadcast(std::as_writable_bytes(std::span(text.data(), text.size())), root);
  return text;
}

}  // namespace ringtrain
