#include "study/halving.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/rounding.h"

namespace ringtrain {
namespace {

// Returns floor(points / factor^i) for i = 0, 1, ..., as long as the result is at least 1. Repeated integer division
// gives the same numbers.
std::vector<std::int64_t> points_of_rungs(std::int64_t points, std::int64_t factor) {
  std::vector<std::int64_t> all;
  for (std::int64_t n = points; n >= 1; n /= factor) all.push_back(n);
  return all;
}

// Returns ceil(samples / factor^times).
std::int64_t divided(std::int64_t samples, std::int64_t factor, std::size_t times) {
  for (std::size_t i = 0; i < times; ++i) samples = divide_up(samples, factor);
  return samples;
}

}  // namespace

std::vector<Rung> halving_rungs(std::int64_t points, const HalvingBudget& budget) {
  const std::vector<std::int64_t> counts = points_of_rungs(points, budget.factor);
  std::vector<Rung> rungs;
  if (budget.first == 0) {
    for (std::size_t i = 0; i < counts.size(); ++i)
      rungs.push_back({counts[i], divided(budget.samples, budget.factor, counts.size() - 1 - i)});
    return rungs;
  }
  std::int64_t samples = budget.first;
  for (std::size_t i = 0;; ++i, samples *= budget.factor) {
    const std::int64_t count = i < counts.size() ? counts[i] : 1;
    const bool last = samples >= budget.samples || count == 1;
    rungs.push_back({count, last ? budget.samples : samples});
    if (last) return rungs;
  }
}

double samples_of(const std::vector<Rung>& rungs) {
  double sum = 0;
  std::int64_t before = 0;
  for (const Rung& rung : rungs) {
    sum += static_cast<double>(rung.points) * static_cast<double>(rung.samples - before);
    before = rung.samples;
  }
  return sum;
}

std::vector<std::string> promoted(std::vector<RungLoss> losses, std::int64_t count) {
  std::erase_if(losses, [](const RungLoss& l) { return !std::isfinite(l.loss); });
  std::ranges::sort(losses, {}, [](const RungLoss& l) { return std::tuple(-l.reached, l.loss, l.point); });
  if (std::ssize(losses) > count) losses.resize(static_cast<std::size_t>(std::max<std::int64_t>(0, count)));
  std::vector<std::string> names;
  for (const RungLoss& l : losses) names.push_back(l.point);
  return names;
}

}  // namespace ringtrain
