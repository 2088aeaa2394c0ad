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

void check_norm_values(const Experiment& experiment, const RunCourse& course, const RunSplit& split,
                       const Graph& model) {
  const SmallestNorm norm = smallest_norm(model);
  if (norm.values() != 1) return;
  constexpr const char* why = "; the mean is then the value itself, and the picture is lost";
  if (norm.by_sample)
    throw Error(cat("group norm ", norm.name, " would normalise a single value: ", product(norm), why),
                "set model.norm_groups to a smaller number, so that a group has more channels");
  if (split.norm_group == 1)
    throw Error(cat("batch norm ", norm.name, " would normalise a single value: batch.worker ", product(1, norm), why),
                "set batch.worker to 2 or more (32 is usual), or data.image_size to larger pictures");
  const std::int64_t rest = course.samples_per_epoch % split.shares.global;
  if (experiment.data.last_batch == "smaller" && rest % split.norm_group == 1)
    throw Error(
        cat("batch norm ", norm.name, " would normalise a single value in the smaller batch at an epoch's end, whose ",
            rest, " samples leave 1 for the last worker of batch.worker ", split.norm_group, why),
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
