#include "cluster/communicator.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "backend/norm_team.h"
#include "base/error.h"
#include "base/rounding.h"
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

std::unique_ptr<NormTeam> Communicator::make_norm_team(int span) {
  throw Error(cat(describe(), " cannot share batch norm's groups among ", span, " ranks"),
              "use a number of ranks that divides the number of virtual workers");
}

namespace {
[[noreturn]] void refuse(const Communicator& communicator, const char* what) {
  throw Error(cat("this communicator (", communicator.describe(), ") cannot do a ", what),
              "use parallel.kind: ring without parallel.shard_state");
}
}  // namespace

void* Communicator::allocate(std::int64_t bytes) {
  constexpr std::int64_t line = 64;
  const auto size = static_cast<std::size_t>(round_up(bytes, line));
  void* memory = std::aligned_alloc(line, size);
  if (memory == nullptr) throw std::bad_alloc();
  return std::memset(memory, 0, size);
}

void Communicator::release(void* memory) {
  std::free(memory);
}

std::unique_ptr<Pending> Communicator::start_reduce_scatter(std::span<float>, std::int64_t, const BeforeSum&) {
  refuse(*this, "reduce-scatter");
}
std::unique_ptr<Pending> Communicator::start_all_gather(std::span<float>, std::int64_t) {
  refuse(*this, "all-gather");
}
std::unique_ptr<Pending> Communicator::start_root_sum(std::span<float>, int, const BeforeSum&) {
  refuse(*this, "sum on one rank");
}
std::unique_ptr<Pending> Communicator::start_broadcast(std::span<float>, int) {
  refuse(*this, "broadcast in the background");
}

void Communicator::check_pieces(std::span<const float> values, std::int64_t piece) const {
  if (piece < 1 ? !values.empty() : std::ssize(values) > piece * size())
    throw Error(cat(values.size(), " values do not fit into ", size(), " pieces of ", piece));
}

std::string broadcast_string(Communicator& communicator, std::string text, int root) {
  std::uint64_t length = text.size();
  communicator.broadcast(std::as_writable_bytes(std::span(&length, 1)), root);
  text.resize(length);
  communicator.broadcast(std::as_writable_bytes(std::span(text.data(), text.size())), root);
  return text;
}

}  // namespace ringtrain
