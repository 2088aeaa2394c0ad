#include "run/norm_plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/table.h"

namespace ringtrain {

// Chooses passes that together have exactly evaluate.norm_samples samples. A group is batch.worker samples, which batch
// norm normalises together. A pass has whole groups, even if ranks share a group in training, and is as large as a
// micro-batch allows. So its size does not change which samples are normalised together.
void plan_norms(RunPlan& p) {
  p.norm_samples = p.experiment.evaluate.norm_samples;
  if (p.norm_samples == 0) return;
  if (p.norm_samples > p.train.total)
    throw Error(
        cat("evaluate.norm_samples is ", p.norm_samples, ", but ", p.train.prefix, " has ", p.train.total, " samples"),
        cat("expected at most ", p.train.total / p.norm_group * p.norm_group));
  const std::int64_t groups = p.norm_samples / p.norm_group;
  std::int64_t groups_of_pass = std::clamp<std::int64_t>(p.batch.micro_batch / p.norm_group, 1, groups);
  while (groups % groups_of_pass != 0) --groups_of_pass;
  p.norm_loader = p.train_loader;
  p.norm_loader.course = {};  // the batch never changes
  p.norm_loader.span = 1;
  p.norm_loader.global_batch = p.norm_loader.rows = p.norm_loader.micro_batch = groups_of_pass * p.norm_group;
}

// For norm_statistics: last, the momentum is 1, so that the running statistics are those of the last step.
float norm_momentum(const Experiment& experiment) {
  if (experiment.evaluate.norm_statistics == "last") return 1;
  return static_cast<float>(experiment.model.norm_momentum);
}

std::string describe_norm_statistics(const Experiment& e) {
  if (e.evaluate.norm_statistics == "last") return "evaluated with the last step's statistics";
  return cat("evaluated with statistics recomputed on ", with_thousands(e.evaluate.norm_samples), " training samples");
}

}  // namespace ringtrain
