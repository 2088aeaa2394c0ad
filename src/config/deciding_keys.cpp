#include "config/deciding_keys.h"

namespace ringtrain {

namespace {

// Returns whether the run makes other updates than it would make with parallel.kind: ring.
bool leaves_the_ring(const ParallelConfig& parallel) {
  return parallel.kind == "server" && (parallel.mode == "async" || parallel.backup_workers > 0);
}

}  // namespace

bool decides_what_is_learned(const Field& field, const Experiment& e) {
  if (!has_effect(field, e)) return false;  // so that a new kind of model leaves the ids of the others as they are
  if (field.key == "model.norm_momentum" && !has_batch_norm(e.model) && e.model.kind != "alexnet")
    return false;  // so that a cnn or an mlp without norms keeps its id
  if (section_of(field.key) == "branch" && e.branch.from.empty())
    return false;  // if the run is not a branch, its id does not depend on these keys
  if (section_of(field.key) == "parallel" && !leaves_the_ring(e.parallel))
    return false;  // all other kinds make the same updates, up to rounding
  if (field.off_by_default_ && is_default(field, e)) return false;  // so that a new key leaves ids as they are
  if (field.key.starts_with("average.") && e.average.half_life == 0) return false;
  if (!field.how_it_runs_) return true;
  const bool follows = e.batch.follow_noise > 0;
  if (field.key == "noise.small_batch") return follows || e.optimizer.adascale;
  return follows && (field.key == "noise.every_steps" || field.key == "noise.half_life");
}

}  // namespace ringtrain
