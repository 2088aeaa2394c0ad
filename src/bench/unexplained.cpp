#include "bench/unexplained.h"

#include <algorithm>
#include <cmath>

namespace ringtrain {

void Unexplained::add(int ranks, int ranks_on_node, double seconds) {
  const auto after = std::ranges::upper_bound(points_, ranks, {}, &Point::ranks);
  points_.insert(after, {ranks, ranks_on_node, seconds});
}

double Unexplained::at(int ranks, int ranks_on_node) const {
  for (const Point& p : points_)
    if (p.ranks == ranks && p.ranks_on_node == ranks_on_node) return p.seconds;
  const auto place = [](int count) { return std::sqrt(std::log(static_cast<double>(count))); };
  const auto upper = std::ranges::lower_bound(points_, ranks, {}, &Point::ranks);
  const Point lower = upper == points_.begin() ? Point{1, 1, 0} : *std::prev(upper);
  if (upper != points_.end())
    return lower.seconds + (upper->seconds - lower.seconds) * (place(ranks) - place(lower.ranks)) /
                               (place(upper->ranks) - place(lower.ranks));
  return lower.seconds > 0 ? lower.seconds * place(ranks) / place(lower.ranks) : lower.seconds;
}

}  // namespace ringtrain
