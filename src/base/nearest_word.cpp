#include "base/nearest_word.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace ringtrain {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i)
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

std::string nearest_word(std::string_view word, std::span<const std::string_view> known) {
  if (word.size() > 100) return "";
  std::string_view best;
  std::size_t best_cost = std::max<std::size_t>(2, word.size() / 3 + 1);
  for (const std::string_view candidate : known) {
    const std::size_t cost = edit_distance(word, candidate);
    if (cost < best_cost) best = candidate, best_cost = cost;
  }
  return best.empty() ? "" : cat("; did you mean '", best, "'?");
}

}  // namespace ringtrain
