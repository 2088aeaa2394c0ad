#include "run/plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "base/table.h"
#include "config/schema.h"
#include "nn/parameters.h"
#include "parallel/synchronizer.h"
#include "run/course.h"
#include "run/fitting_passes.h"
#include "run/fixed_order.h"
#include "run/passes.h"
#include "run/split.h"
#include "run/task.h"

namespace ringtrain {

namespace {

// Throws Error if no tensor of the run can be the one that test.flip_bit_in names.
void check_flipped_tensor(const Experiment& experiment, const ParameterTable& parameters) {
  const std::string& name = experiment.test.flip_bit_in;
  if (name.empty()) return;
  const auto is_of = [&](const Parameter& p) { return name == weight_array(p) || is_state_array(name, p); };
  if (std::ranges::any_of(parameters.all(), is_of)) return;
  const Parameter& example = parameters.all().front();
  throw Error(cat("test.flip_bit_in is ", name, ", expected a tensor like ", weight_array(example), " or ",
                  state_array("momentum", example)),
              "Tensors are named as in checkpoints.");
}

}  // namespace

RunPlan make_run_plan(const Experiment& experiment, const DatasetIndex& train, const DatasetIndex* validation,
                      int ranks, Backend& backend, const MicroBatchChoice& known,
                      const std::optional<BranchPoint>& branch) {
  const std::optional<ServerPlan> servers = server_plan(experiment, ranks, backend.on_device());
  check_training_data(experiment, train, validation);
  const Experiment of_update = experiment_of_update(experiment, servers);
  const Graph model = model_of(experiment, train);

  const RunTask task = task_of(experiment, train, validation, model);
  check_servers(experiment.parallel, ranks, task.parameters.trained());
  const RunCourse course = plan_course(of_update, train, model.sequence(), branch);
  const RunSplit split = plan_split(experiment, of_update.batch, model, ranks, servers);
  check_norm_values(experiment, course, split, model);
  check_flipped_tensor(experiment, task.parameters);
  const MicroBatchChoice choice = preferred_choice(task, split, model, backend, known);
  const RunPlan preferred = {task, course, split, passes_of(task, course, split, model, choice)};
  const RunPlan plan = {task, course, split, passes_that_fit(preferred, backend)};
  check_fixed_order(plan);
  return plan;
}

RunPlan make_evaluation_plan(const Experiment& experiment, const DatasetIndex& train, const DatasetIndex* validation,
                             int ranks, Backend& backend, std::int64_t recorded_micro_batch) {
  check_data(experiment, train, validation);
  const Graph model = model_of(experiment, train);
  const RunTask task = task_of(experiment, train, validation, model);
  BatchConfig batch = experiment.batch;
  batch.schedule.clear();
  batch.follow_noise = 0;
  if (batch.micro == 0 && has_fixed_order(experiment)) batch.micro = batch.worker;  // as in training
  const auto used = static_cast<int>(task.carries_state ? dividing_ranks(batch, ranks) : ranks);
  if (!task.carries_state) batch = evaluation_batch(batch, ranks, recorded_micro_batch);
  const RunCourse course{.batches = {batch.global}};
  const RunSplit split = plan_evaluation_split(batch, model, used);
  const MicroBatchChoice micro_batch =
      preferred_choice(task, split, model, backend, micro_batch_of_checkpoint(recorded_micro_batch));
  return {task, course, split, passes_of(task, course, split, model, micro_batch)};
}

std::string experiment_id(const RunPlan& plan) {
  std::string text = deciding_keys(plan.experiment);
  text += cat("data.train=", plan.train.dataset_uuid, " ", plan.train.split, "\n");
  if (plan.has_validation)
    text += cat("data.validation=", plan.validation.dataset_uuid, " ", plan.validation.split, "\n");
  if (plan.servers) text += cat("parallel.workers=", plan.servers->workers, "\n");
  if (is_branch(plan.experiment)) text += cat("branch.from=", plan.branch.source, "\n");
  return printed("%016llx", static_cast<unsigned long long>(fnv1a(text)));
}

std::string model_fingerprint(const RunPlan& plan) {
  std::string text = cat(plan.experiment.model.kind, ", ", plan.graph.sequence(), " positions;");
  if (plan.train.is_image()) text = cat(plan.experiment.model.kind, ";");
  for (const Parameter& p : plan.parameters.all()) text += cat(" ", p.name, " [", joined(p.shape), "]");
  text += plan.train.is_image() ? "; classes:" : "; symbols:";
  for (const std::string& symbol : plan.train.text.vocabulary) text += " '" + symbol + "'";
  for (const std::string& id : plan.train.image.class_ids) text += " '" + id + "'";
  return text;
}

std::string source_text(const BranchPoint& point) {
  return printed("%016llx", static_cast<unsigned long long>(point.source));
}

}  // namespace ringtrain
