#include "run/norm_plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/table.h"

namespace ringtrain {
namespace {

constexpr std::int64_t few_values = 4;

// The norm that normalises the fewest values of a sample.
struct SmallestNorm {
  std::string name;
  bool by_sample = false;                            // group norm
  std::int64_t channels = 0, height = 0, width = 0;  // that are normalised together; 0: the model has no norm
  std::int64_t values() const { return channels * height * width; }
};

SmallestNorm smallest_norm(const Graph& graph) {
  SmallestNorm smallest;
  for (const Node& node : graph.nodes()) {
    const auto* norm = std::get_if<Norm>(&node.operation);
    if (norm == nullptr) continue;
    const SmallestNorm here{norm->weight.substr(0, norm->weight.rfind('.')), norm->by_sample(),
                            norm->channels_together(), node.output.height, node.output.width};
    if (smallest.values() == 0 || here.values() < smallest.values()) smallest = here;
  }
  return smallest;
}

std::string product(std::int64_t samples, const SmallestNorm& norm) {
  return cat(samples, " x height ", norm.height, " x width ", norm.width);
}
std::string product(const SmallestNorm& norm) {
  return cat(norm.channels, " channels x height ", norm.height, " x width ", norm.width);
}

}  // namespace

void check_norm_values(const RunPlan& plan) {
  const SmallestNorm norm = smallest_norm(plan.graph);
  if (norm.values() != 1) return;
  constexpr const char* why = "; the mean is then the value itself, and the picture is lost";
  if (norm.by_sample)
    throw Error(cat("group norm ", norm.name, " would normalise a single value: ", product(norm), why),
                "set model.norm_groups to a smaller number, so that a group has more channels");
  if (plan.norm_group == 1)
    throw Error(cat("batch norm ", norm.name, " would normalise a single value: batch.worker ", product(1, norm), why),
                "set batch.worker to 2 or more (32 is usual), or data.image_size to larger pictures");
  const std::int64_t rest = plan.samples_per_epoch % plan.batch.global;
  if (plan.experiment.data.last_batch == "smaller" && rest % plan.norm_group == 1)
    throw Error(
        cat("batch norm ", norm.name, " would normalise a single value in the smaller batch at an epoch's end, whose ",
            rest, " samples leave 1 for the last worker of batch.worker ", plan.norm_group, why),
        "set data.last_batch=drop, or another batch.worker");
}

std::string small_norm(const RunPlan& plan) {
  const SmallestNorm norm = smallest_norm(plan.graph);
  const std::int64_t values = norm.values() * (norm.by_sample ? 1 : plan.norm_group);
  if (values == 0 || values >= few_values) return "";
  if (norm.by_sample)
    return cat("group norm ", norm.name, " normalises only ", values, " values: ", product(norm),
               "; such statistics are mostly noise. A smaller model.norm_groups helps");
  return cat("batch norm ", norm.name, " normalises only ", values, " values: batch.worker ",
             product(plan.norm_group, norm),
             "; such statistics are mostly noise. A larger batch.worker (32 is usual) helps");
}

// Chooses passes that together have exactly evaluate.norm_samples samples. A group is batch.worker samples, which batch
// norm normalises together. A pass has whole groups, even if ranks share a group in training, and is as large as a
// micro-batch allows. So its size does not change which samples are normalised together.
void plan_norms(RunPlan& p) {
  p.norm_samples = p.experiment.evaluate.norm_samples;
  if (p.norm_samples == 0) return;
  if (const std::int64_t samples = p.samples_per_epoch; p.norm_samples > samples)
    throw Error(cat("evaluate.norm_samples is ", p.norm_samples, ", but ", p.train.prefix, " has ", samples, " samples",
                    samples < p.train.total ? cat(" in data.share ", p.experiment.data.share) : ""),
                cat("expected at most ", samples / p.norm_group * p.norm_group));
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
