#include "parallel/step_times.h"

#include <array>
#include <iterator>

namespace ringtrain {
namespace {

// Returns `mine` of every rank on rank 0.
std::vector<float> gather_all(std::span<const float> mine, Communicator& communicator) {
  const bool is_root = communicator.rank() == 0;
  std::vector<float> all(is_root ? mine.size() * static_cast<std::size_t>(communicator.size()) : 0);
  communicator.gather(mine, all, 0);
  return all;
}

}  // namespace

StepTimes& StepTimes::operator+=(const StepTimes& other) {
  for (const StepPart& part : step_parts) this->*part.seconds += other.*part.seconds;
  return *this;
}

StepTimes StepTimes::operator/(double divisor) const {
  StepTimes quotient = *this;
  for (const StepPart& part : step_parts) quotient.*part.seconds /= divisor;
  return quotient;
}

std::vector<StepTimes> gather_times(const StepTimes& mine, Communicator& communicator) {
  std::vector<float> own;
  for (const StepPart& part : step_parts) own.push_back(static_cast<float>(mine.*part.seconds));
  const std::vector<float> all = gather_all(own, communicator);
  constexpr std::size_t parts = std::size(step_parts);
  std::vector<StepTimes> times(all.size() / parts);
  for (std::size_t i = 0; i < all.size(); ++i) times[i / parts].*step_parts[i % parts].seconds = all[i];
  return times;
}

// A float can represent all whole numbers up to 2^24, so each number is sent as two floats.
std::vector<SentBytes> gather_bytes(const SentBytes& mine, Communicator& communicator) {
  constexpr std::int64_t most = 1 << 24;
  const std::array<float, 4> own = {
      static_cast<float>(mine.by_message / most), static_cast<float>(mine.by_message % most),
      static_cast<float>(mine.through_memory / most), static_cast<float>(mine.through_memory % most)};
  const std::vector<float> all = gather_all(own, communicator);
  const auto whole = [&](std::size_t at) {
    return static_cast<std::int64_t>(all[at]) * most + static_cast<std::int64_t>(all[at + 1]);
  };
  std::vector<SentBytes> bytes;
  for (std::size_t at = 0; at < all.size(); at += own.size()) bytes.push_back({whole(at), whole(at + 2)});
  return bytes;
}

}  // namespace ringtrain
