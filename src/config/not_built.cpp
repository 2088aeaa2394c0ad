#include "config/not_built.h"

#include "base/error.h"

namespace ringtrain {

std::optional<Contradiction> find_not_built(const Experiment& e) {
  const ParallelConfig& p = e.parallel;
  const struct {
    bool asked;
    std::string_view key, what;
  } table[] = {
      {p.replicas > 1, "parallel.replicas", "parallel.replicas: 2"},
  };
  for (const auto& [asked, key, what] : table)
    if (asked) return {{{key}, cat(what, " is not built in this version"), "Leave the key out."}};
  return std::nullopt;
}

}  // namespace ringtrain
