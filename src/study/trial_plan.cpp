#include "study/trial_plan.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "bench/forecast.h"
#include "bench/preflight.h"
#include "checkpoint/find_checkpoint.h"
#include "config/experiment.h"
#include "config/reader.h"
#include "config/schema.h"
#include "config/schema_text.h"
#include "run/course.h"
#include "run/folder.h"
#include "run/plan.h"
#include "run/task.h"

namespace ringtrain {

const DatasetIndex& TrialPlanner::index(const Experiment& experiment, const std::string& prefix, std::int64_t samples) {
  const auto known = indices_.find(prefix);
  if (known != indices_.end()) return known->second;
  return indices_.emplace(prefix, planned_index(experiment, prefix, samples)).first->second;
}

Backend& TrialPlanner::backend(int threads) {
  const auto known = machines_.find(threads);
  if (known != machines_.end()) return *known->second.backend;
  return *machines_.emplace(threads, make_planning_machine(threads, device_)).first->second.backend;
}

TrialPlan TrialPlanner::plan(const Trial& trial) {
  Experiment e = trial.experiment;
  if (has_gpus_ && e.machine.device != "cpu") e.memory = {};
  const DatasetIndex& train = index(e, e.data.train, e.data.train_samples);
  const DatasetIndex* validation =
      e.data.validation.empty() ? nullptr : &index(e, e.data.validation, e.data.validation_samples);
  const int threads = e.run.threads > 0 ? static_cast<int>(e.run.threads) : threads_;
  return trial_plan_of(plan_of_new_run(e, train, validation, static_cast<int>(trial.ranks), backend(threads)));
}

TrialPlan trial_plan_of(const RunPlan& p) {
  const Experiment& e = p.experiment;
  TrialPlan plan;
  plan.batch = p.batch;
  plan.parameters = p.parameters.count();
  plan.steps_per_epoch = p.schedule.steps_per_epoch;
  plan.steps = p.schedule.total_steps;
  plan.samples = plan.steps * p.batch.global;
  if (e.data.last_batch == "smaller" && plan.steps_per_epoch > 0)  // samples of whole epochs, then of whole batches
    plan.samples =
        plan.steps / plan.steps_per_epoch * p.samples_per_epoch + plan.steps % plan.steps_per_epoch * p.batch.global;
  if (is_branch(e)) {
    plan.steps = p.updates > 0 ? p.updates - p.branch.position.step : 0;
    plan.samples = plan.steps * p.batch.global;
    plan.peak_rate = rate_at(p, p.branch.position);
    plan.experiment_id = experiment_id(p);
    return plan;
  }
  for (const RateChange& change : rate_changes(p)) plan.peak_rate = std::max(plan.peak_rate, change.rate);
  plan.experiment_id = experiment_id(p);
  return plan;
}

namespace {

namespace fs = std::filesystem;

// Returns the samples that the run has trained on after this step; 0 if metrics.jsonl does not say. The batch may have
// changed between steps. The file is read from its end, because the newest records decide.
double recorded_samples(const fs::path& folder, double step) {
  const std::string text = file_text(folder / run_metrics_name);
  for (std::size_t end = text.rfind('\n'); end != std::string::npos && end > 0;) {
    const std::size_t before = text.rfind('\n', end - 1);
    const std::size_t begin = before == std::string::npos ? 0 : before + 1;
    const auto record = parse_json(text.substr(begin, end - begin));
    if (record.is_object() && record.contains("loss") && record.at("step").get<double>() <= step)
      return record.at("samples").get<double>();
    end = before;
  }
  return 0;
}

// Returns the keys on which the time of a sample depends, with their values: the model, the precision, the device, the
// threads, and the keys of parallel, communication, memory and test.
std::string time_keys(const Experiment& experiment) {
  constexpr std::string_view sections[] = {"parallel.", "communication.", "memory.", "test."};
  std::string text = model_keys(experiment);
  for (const Field& field : schema()) {
    const bool is_of_section =
        std::ranges::any_of(sections, [&](std::string_view section) { return field.key.starts_with(section); });
    if ((is_of_section && field.key != "communication.timeout_seconds") || field.key == "machine.device" ||
        field.key == "run.threads")
      text += cat(" ", field.key, "=", value_text(field, experiment));
  }
  return text;
}

std::optional<MeasuredRun> measured_run(const fs::path& folder) {
  std::ifstream file(folder / run_record_name);
  const auto json = parse_json(file);
  if (!json.is_object() || !json.contains("starts") || !json["starts"].is_array() || json["starts"].empty())
    return std::nullopt;
  try {
    const Json& start = json.at("starts").back();
    MeasuredRun run;
    run.trial = folder.filename().string();
    run.started = start.value("started", "");
    run.on_cpu = start.value("backend", "").starts_with("CPU");
    run.ranks = integer_from<std::int64_t>(start.at("ranks"));
    run.global_batch = integer_from<std::int64_t>(start.at("batch").at("global"));
    const double before = start.contains("branch") ? start.at("branch").at("samples").get<double>() : 0;
    const double samples = recorded_samples(folder, start.at("final_step").get<double>()) - before;
    run.seconds_per_sample = start.at("elapsed_seconds").get<double>() / samples;
    const Experiment experiment = read_experiment((folder / run_experiment_name).string(), {});
    run.settings = time_keys(experiment);
    run.worker_batch = experiment.batch.worker;
    if (!(samples > 0 && run.seconds_per_sample > 0)) return std::nullopt;
    return run;
  } catch (const Json::exception&) {
  } catch (const Error&) {
  }
  return std::nullopt;  // the run is not finished, or its files have another form
}

}  // namespace

std::vector<MeasuredRun> measured_runs(const std::string& study_folder, bool for_gpus) {
  std::vector<MeasuredRun> runs;
  std::error_code code;
  for (const fs::directory_entry& entry : fs::directory_iterator(study_folder, code))
    if (entry.is_directory(code) && !entry.is_symlink(code))
      if (const auto run = measured_run(entry.path()); run && !(for_gpus && run->on_cpu)) runs.push_back(*run);
  std::ranges::sort(runs, std::ranges::greater(),
                    [](const MeasuredRun& run) { return std::tie(run.started, run.trial); });
  return runs;
}

std::optional<ExpectedTime> TimeExpectation::of(const Trial& trial, const TrialPlan& plan) const {
  if (plan.steps == 0) return std::nullopt;
  const std::string settings = time_keys(trial.experiment);
  const MeasuredRun* nearest = nullptr;
  const auto apart = [&](const MeasuredRun& run) {
    const double ratio = static_cast<double>(run.global_batch) / static_cast<double>(plan.batch.global);
    return std::pair(run.worker_batch != trial.experiment.batch.worker, std::abs(std::log(ratio)));
  };
  for (const MeasuredRun& run : runs_)
    if (run.settings == settings && run.ranks == trial.ranks && (nearest == nullptr || apart(run) < apart(*nearest)))
      nearest = &run;
  if (nearest != nullptr)
    return ExpectedTime{nearest->seconds_per_sample * static_cast<double>(plan.samples), nearest->trial};
  if (preflight_.empty()) return std::nullopt;
  try {
    refuse_other_kinds(trial.experiment.parallel, "a forecast is of a ring");
    const Forecast forecast(trial.experiment, preflight_, {});
    const int ranks = static_cast<int>(trial.ranks);
    const ForecastRow row = forecast.row(Scaling::strong, forecast.chosen_topology(ranks), ranks);
    return ExpectedTime{row.step.total() * static_cast<double>(plan.steps), "preflight"};
  } catch (const Error&) {
    return std::nullopt;  // another model was measured, the files have only one rank and no link, or it is no ring
  }
}

}  // namespace ringtrain
