#include "config/not_built.h"

#include "base/error.h"

namespace ringtrain {

std::optional<Contradiction> find_not_built(const Experiment& e) {
  const ParallelConfig& p = e.parallel;
  const struct {
    bool asked;
    std::string_view key, what;
  } table[] = {
      {p.kind == "server" && p.mode == "sync" && p.backup_workers == 0, "parallel.kind", "parallel.kind: server"},
      {p.replicas > 1, "parallel.replicas", "parallel.replicas: 2"},
      {p.shard_state, "parallel.shard_state", "parallel.shard_state"},
  };
  for (const auto& [asked, key, what] : table)
    if (asked) return {{{key}, cat(what, " is not built in this version"), "Leave the key out."}};
  return std::nullopt;
}

}  // namespace ringtrain
