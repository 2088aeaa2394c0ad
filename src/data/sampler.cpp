#include "data/sampler.h"

#include "base/error.h"
#include "base/random.h"

namespace ringtrain {
namespace {

// With this many rounds, small counts look random too. Each round costs one Philox call (about 10 ns).
constexpr std::uint64_t rounds = 6;

}  // namespace

EpochOrder::EpochOrder(std::uint64_t seed, std::int64_t epoch, std::int64_t count) : count_(count) {
  if (count < 1) throw Error(cat("cannot order ", count, " samples, expected at least 1"));
  const Random4 r = philox(random_key(seed, RandomPurpose::order), static_cast<std::uint64_t>(epoch), 0);
  key_ = (std::uint64_t{r.v[0]} << 32) | r.v[1];
  while (half_bits_ < 31 && (std::int64_t{1} << (2 * half_bits_)) < count) ++half_bits_;
}

std::int64_t EpochOrder::operator()(std::int64_t position) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<std::uint64_t>(position);
  do {  // at most four repetitions on average: the network permutes 4^half_bits values, which are at most 4 x count
    std::uint64_t left = value >> half_bits_, right = value & mask;
    for (std::uint64_t round = 0; round < rounds; ++round) {
      const std::uint64_t mixed = left ^ (philox(key_, right, round).v[0] & mask);
      left = right;
      right = mixed;
    }
    value = (left << half_bits_) | right;
  } while (value >= static_cast<std::uint64_t>(count_));
  return static_cast<std::int64_t>(value);
}

}  // namespace ringtrain
