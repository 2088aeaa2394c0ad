#include "bench/experiment_keys.h"

#include "base/error.h"
#include "config/schema.h"

namespace ringtrain {
namespace {

// Returns how the ranks of this kind of parallel training differ from those of a ring, or "" for a ring.
std::string difference(const ParallelConfig& p) {
  if (p.kind == "pipeline") return "parallel.kind is pipeline, whose ranks compute some of the layers";
  if (servers_work(p)) return "parallel.kind is server, whose gradients go to parameter servers";
  if (!has_server_ranks(p)) return "";
  if (p.mode == "async") return "parallel.mode is async, whose workers have no common step";
  return cat("parallel.backup_workers is ", p.backup_workers, ", and such a step does not wait for all gradients");
}

// Returns "parallel.kind=ring parallel.mode=sync". The keys that only the other kind has must go, too.
std::string ring_overrides(const ParallelConfig& parallel) {
  Experiment own;
  own.parallel = parallel;
  const Experiment ring;
  std::string text;
  for (const Field& field : schema())
    if (field.key.starts_with("parallel.") && value_text(field, own) != value_text(field, ring))
      text += cat(text.empty() ? "" : " ", field.key, "=", value_text(field, ring));
  return text;
}

}  // namespace

void refuse_other_kinds(const ParallelConfig& parallel, const std::string& what) {
  const std::string why = difference(parallel);
  if (why.empty()) return;
  throw Error(cat(what, ", but ", why), cat("set ", ring_overrides(parallel),
                                            parallel.kind == "pipeline" ? "; bench split measures pipelines" : ""));
}

std::string model_keys(const Experiment& experiment) {
  std::string text;
  for (const Field& field : schema()) {
    const std::string key(field.key);
    if (key == "precision" || key.rfind("model.", 0) == 0 || key == "data.image_size" || key == "data.sequence")
      text += cat(text.empty() ? "" : " ", key, "=", value_text(field, experiment));
  }
  return text;
}

}  // namespace ringtrain
