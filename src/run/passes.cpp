#include "run/passes.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "optim/optimizer.h"
#include "run/fixed_order.h"
#include "run/task.h"

namespace ringtrain {
namespace {

// Returns the bytes of weights, averaged weights, gradients, optimizer state and Muon's vectors, and of the vector that
// the noise scale needs when passes are accumulated.
std::int64_t vector_bytes(const ParameterTable& parameters, const Experiment& e) {
  const std::int64_t states =
      std::ssize(Optimizer::state_names(e.optimizer, e.average)) + (e.noise.every_steps > 0 ? 1 : 0);
  const std::int64_t full = Optimizer::averages(e.optimizer, e.average) ? 3 : 2;
  const std::int64_t muons = e.optimizer.kind == "muon" ? 2 * muon_layout(parameters, 1).size : 0;  // the largest size
  const std::int64_t elements = full * parameters.size() + states * parameters.trained() + muons;
  return elements * static_cast<std::int64_t>(sizeof(float));
}

// Returns the micro-batches per step for which a pipeline's bubble is small. 1 for one stage.
std::int64_t passes_that_fill(std::int64_t stages) {
  return stages > 1 ? 4 * stages : 1;
}

LoaderPlan training_loader(const RunTask& task, const RunCourse& course, const RunSplit& split, const BatchPlan& batch,
                           std::int64_t sequence) {
  LoaderPlan loader = loader_plan(task.experiment, task.train, sequence, batch, false);
  loader.course = course.course;
  loader.span = split.shares.span;
  loader.on_request = split.servers.has_value();
  return loader;
}

LoaderPlan evaluation_loader(const RunTask& task, const RunSplit& split, const BatchPlan& batch,
                             std::int64_t sequence) {
  if (!task.has_validation) return {};
  LoaderPlan loader = loader_plan(task.experiment, task.validation, sequence, batch, true);
  if (split.servers && split.servers->async) loader.global_batch *= split.servers->workers;
  return loader;
}

// Chooses passes that together have exactly evaluate.norm_samples samples. A group is batch.worker samples, which batch
// norm normalises together. A pass has whole groups, even if ranks share a group in training, and is as large as a
// micro-batch allows. So its size does not change which samples are normalised together.
LoaderPlan norm_loader(const LoaderPlan& training, std::int64_t samples, std::int64_t group) {
  if (samples == 0) return {};
  const std::int64_t groups = samples / group;
  std::int64_t groups_of_pass = std::clamp<std::int64_t>(training.micro_batch / group, 1, groups);
  while (groups % groups_of_pass != 0) --groups_of_pass;
  LoaderPlan loader = training;
  loader.course = {};  // the batch never changes
  loader.span = 1;
  loader.global_batch = loader.rows = loader.micro_batch = groups_of_pass * group;
  return loader;
}

}  // namespace

std::string reason_for_all(const BatchShares& shares) {
  if (shares.small_batch > 0) return "noise.small_batch";
  if (shares.micro_batches.back() == shares.global / shares.ranks) return "all rows of a rank";
  return "the largest that divides a rank's rows of every batch";
}

RunPasses passes_of(const RunTask& task, const RunCourse& course, const RunSplit& split, Graph graph,
                    const MicroBatchChoice& choice) {
  const BatchPlan batch = batch_plan(split.shares, choice.samples);
  // Parameter servers do not see the small batches of a step.
  const bool measures_noise =
      task.experiment.noise.every_steps > 0 && !split.servers && batch.small_batch < course.batches.back();
  const LoaderPlan training = training_loader(task, course, split, batch, graph.sequence());
  const LoaderPlan evaluation = evaluation_loader(task, split, batch, graph.sequence());
  return {.graph = std::move(graph),
          .micro_batch_choice = choice,
          .batch = batch,
          .measures_noise = measures_noise,
          .train_loader = training,
          .validation_loader = evaluation,
          .norm_loader = norm_loader(training, course.norm_samples, split.norm_group)};
}

MicroBatchChoice preferred_choice(const RunTask& task, const RunSplit& split, const Graph& model, Backend& backend,
                                  const MicroBatchChoice& known) {
  const BatchShares& shares = split.shares;
  const Experiment& e = task.experiment;
  if (shares.stated > 0) return {shares.stated, "batch.micro"};
  if (shares.span > 1)
    return {shares.micro_batches.front(),
            cat("a rank's part of a virtual worker, which ", shares.span, " ranks share")};
  if (has_fixed_order(e)) return {shares.worker, "batch.worker, because communication.order is fixed"};
  if (std::ranges::binary_search(shares.micro_batches, known.samples)) return {known.samples, known.reason};
  const std::int64_t rows = shares.micro_batches.back(), fills = rows / passes_that_fill(split.stages());
  const std::int64_t preferred = backend.preferred_micro_batch(model, task.precision,
                                                               {.rows = rows,
                                                                .group = split.norm_group,
                                                                .vector_bytes = vector_bytes(task.parameters, e),
                                                                .evaluates = task.has_validation,
                                                                .measures_norms = e.evaluate.norm_samples > 0});
  const std::int64_t samples = nearest_micro_batch(shares, std::max<std::int64_t>(1, std::min(preferred, fills)));
  std::string reason = cat("the nearest to ", preferred, ", with which the processor is fastest");
  if (split.stages() > 1 && fills < preferred)
    reason = cat("the nearest to ", std::max<std::int64_t>(1, fills), ", so that ", passes_that_fill(split.stages()),
                 " passes fill the pipeline");
  else if (rows <= preferred)
    reason = reason_for_all(shares);
  else if (backend.on_device())
    reason = "the largest that fits the GPU's memory";
  return {samples, reason, true};
}

// ---- The values that norms normalise together

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

}  // namespace ringtrain
