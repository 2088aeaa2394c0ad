#include "study/expected_time.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_input.h"
#include "bench/experiment_keys.h"
#include "bench/forecast.h"
#include "config/reader.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

std::optional<MeasuredRun> measured_run(const fs::path& folder) {
  std::ifstream file(folder / "run.json");
  const auto json = parse_json<nlohmann::json>(file);
  if (!json.is_object() || !json.contains("starts") || !json["starts"].is_array() || json["starts"].empty())
    return std::nullopt;
  try {
    const nlohmann::json& start = json.at("starts").back();
    MeasuredRun run;
    run.trial = folder.filename().string();
    run.ranks = integer_from<std::int64_t>(start.at("ranks"));
    run.global_batch = integer_from<std::int64_t>(start.at("batch").at("global"));
    const double before = start.contains("branch") ? start.at("branch").at("step").get<double>() : 0;
    const double samples = (start.at("final_step").get<double>() - before) * static_cast<double>(run.global_batch);
    run.seconds_per_sample = start.at("elapsed_seconds").get<double>() / samples;
    run.model = model_keys(read_experiment((folder / "experiment.yaml").string(), {}));
    if (!(samples > 0 && run.seconds_per_sample > 0)) return std::nullopt;
    return run;
  } catch (const nlohmann::json::exception&) {
  } catch (const Error&) {
  }
  return std::nullopt;  // the run is not finished, or its files have another form
}

}  // namespace

std::vector<MeasuredRun> measured_runs(const std::string& study_folder) {
  std::vector<MeasuredRun> runs;
  std::error_code code;
  for (const fs::directory_entry& entry : fs::directory_iterator(study_folder, code))
    if (entry.is_directory(code) && !entry.is_symlink(code))
      if (const auto run = measured_run(entry.path())) runs.push_back(*run);
  std::ranges::sort(runs, {}, &MeasuredRun::trial);
  return runs;
}

std::optional<ExpectedTime> TimeExpectation::of(const Trial& trial, const TrialPlan& plan) const {
  if (plan.steps == 0) return std::nullopt;
  const std::string model = model_keys(trial.experiment);
  const MeasuredRun* nearest = nullptr;
  const auto apart = [&](const MeasuredRun& run) {
    return std::abs(std::log(static_cast<double>(run.global_batch) / static_cast<double>(plan.batch.global)));
  };
  for (const MeasuredRun& run : runs_)
    if (run.model == model && run.ranks == trial.ranks && (nearest == nullptr || apart(run) < apart(*nearest)))
      nearest = &run;
  if (nearest != nullptr)
    return ExpectedTime{nearest->seconds_per_sample * static_cast<double>(plan.samples), nearest->trial};
  if (preflight_.empty()) return std::nullopt;
  try {
    const Forecast forecast(trial.experiment, preflight_, {});
    const ForecastRow row = forecast.row(Scaling::strong, Topology::flat, static_cast<int>(trial.ranks));
    return ExpectedTime{row.step.total() * static_cast<double>(plan.steps), "preflight"};
  } catch (const Error&) {
    return std::nullopt;  // another model was measured, or the files have only one rank and no link
  }
}

}  // namespace ringtrain
