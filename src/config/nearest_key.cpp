// Finds the known key that a user probably meant.
#include <algorithm>

#include "base/error.h"
#include "base/user_text.h"
#include "config/schema.h"

namespace ringtrain {

std::string nearest_key(std::string_view key, bool is_map) {
  if (key.size() > 100) return "";
  std::string_view best;
  std::size_t best_cost = std::max<std::size_t>(2, leaf_of(key).size() / 3 + 1);
  const auto consider = [&](std::string_view candidate, std::size_t cost) {
    if (cost < best_cost) best = candidate, best_cost = cost;
  };
  const std::string_view section = section_of(key), leaf = leaf_of(key);
  if (is_map)
    for (const std::string_view known : sections()) consider(known, edit_distance(key, known));
  if (!is_map || (best.empty() && !section.empty())) {
    const std::string within = is_section(key) ? cat(key, ".") : "";
    for (const Field& field : schema()) {
      if (!field.key.starts_with(within)) continue;
      // A key in another section counts as one more edit, so that a near key of the same section wins. The end of a
      // section's name, as in half_life.beta1, is enough.
      const std::string_view its = section_of(field.key);
      const bool same = its == section || (!section.empty() && its.ends_with(cat(".", section)));
      const std::size_t apart = same ? 0 : 1;
      consider(field.key, std::min(edit_distance(key, field.key), edit_distance(leaf, leaf_of(field.key)) + apart));
      for (const std::string_view name : field.also_) consider(field.key, leaf == name ? apart : best_cost);
    }
  }
  return best.empty() ? "" : cat("; did you mean '", best, "'?");
}

}  // namespace ringtrain
