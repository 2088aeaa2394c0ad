#include "run/run_record.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/version.h"
#include "cluster/binding.h"
#include "config/batch_course.h"
#include "config/experiment.h"
#include "data/row_plan.h"
#include "run/folder.h"
#include "run/library_versions.h"

namespace ringtrain {
namespace {

constexpr const char* slurm_variables[] = {"SLURM_JOB_ID",        "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID",
                                           "SLURM_RESTART_COUNT", "SLURM_JOB_NAME",     "SLURM_JOB_PARTITION",
                                           "SLURM_CLUSTER_NAME",  "SLURM_NNODES",       "SLURM_NTASKS",
                                           "SLURM_CPUS_PER_TASK", "SLURM_JOB_NODELIST"};

std::string path_of(const std::string& run_dir) {
  return cat(run_dir, "/", run_record_name);
}

bool is_text(const Json& json, const char* key) {
  return !json.contains(key) || json[key].is_string();
}

Json read_record(const std::string& run_dir) {
  const std::string path = path_of(run_dir);
  std::ifstream in(path);
  if (!in) return Json{};
  Json json = parse_json(in);
  if (json.is_object() && json.contains("starts") && json["starts"].is_array() && is_text(json, "name") &&
      std::all_of(json["starts"].begin(), json["starts"].end(), [](const Json& start) { return start.is_object(); }))
    return json;
  const std::string aside = path + ".damaged";
  std::rename(path.c_str(), aside.c_str());
  log_warning(path, ": cannot be read as a run's record; moved to ", aside);
  return Json{};
}

void write_record(const std::string& run_dir, const Json& json) {
  write_file_atomically(path_of(run_dir), json_text(json, 2) + "\n");
}

void put(Json& json, const char* key, const std::string& value) {
  if (!value.empty()) json[key] = value;
}

void put(Json& json, const char* key, std::int64_t value) {
  if (value != 0) json[key] = value;
}

Json hosts_to_json(const std::vector<std::string>& hosts) {
  Json json = Json::object();
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) json[hosts[rank]].push_back(rank);
  return json;
}

Json batch_to_json(const BatchPlan& plan) {
  return {{"global", plan.global},
          {"worker", plan.worker},
          {"workers", plan.workers},
          {"ranks", plan.ranks},
          {"rows_per_rank", plan.rows_per_rank},
          {"micro_batch", plan.micro_batch},
          {"accumulation", plan.accumulation},
          {"arithmetic", to_string(plan)}};
}

Json dataset_to_json(const DatasetIndex& index, std::int64_t samples) {
  return {{"path", index.prefix}, {"uuid", index.dataset_uuid}, {"samples", samples}};
}

Json branch_to_json(const RunPlan& plan) {
  const BranchConfig& branch = plan.experiment.branch;
  const Position& at = plan.branch.position;
  return {{"from", branch.from},
          {"run", run_of_source(branch.from)},
          {"step", at.step},
          {"samples", at.samples},
          {"epoch", plan.schedule.epochs(at)},
          {"batch_factor", branch.batch_factor},
          {"rate_factor", branch.rate_factor},
          {"source", source_text(plan.branch)}};
}

void record_in_last_start(const std::string& run_dir, const char* key, const Json& value) {
  Json json = read_record(run_dir);
  if (!json.is_object() || json["starts"].empty()) return;
  json["starts"].back()[key] = value;
  write_record(run_dir, json);
}

// The fields of a start, in their order.
Json start_to_json(const RunRecord& record) {
  const RunPlan& plan = record.plan;
  Json json;
  json["started"] = utc_time();
  json["process_id"] = static_cast<std::int64_t>(::getpid());
  json["command_line"] = record.command_line;
  put(json, "commit", build_commit());
  put(json, "build_flags", build_flags());
  json["versions"] = library_versions();
  put(json, "launcher", record.launcher);
  put(json, "ranks", std::ssize(record.hosts));
  put(json, "threads_per_rank", record.threads);
  if (!record.hosts.empty()) json["hosts"] = hosts_to_json(record.hosts);
  put(json, "instruction_set", build_instruction_sets());  // those of the build; `backend` names the one in use
  put(json, "cpu", processor_model());
  put(json, "backend", record.backend);
  put(json, "precision", plan.experiment.precision);
  put(json, "communicator", record.communicator);
  if (plan.batch.global != 0) json["batch"] = batch_to_json(plan.batch);
  put(json, "steps_per_epoch", plan.schedule.steps_per_epoch);
  put(json, "total_steps", plan.updates);
  if (is_branch(plan.experiment)) json["branch"] = branch_to_json(plan);
  json["resumed_from_step"] = record.resumed_from_step;
  if (!plan.train.prefix.empty()) json["train"] = dataset_to_json(plan.train, plan.samples_per_epoch);
  if (plan.has_validation)
    json["validation"] = dataset_to_json(plan.validation, samples_per_epoch(plan.validation, plan.validation_loader));
  if (const double loss = loss_of_guessing(plan.train); loss > 0) json["guessing_loss"] = loss;  // in nats
  put(json, "parameters", plan.parameters.count());
  for (const MemoryItem& item : record.memory) json["memory_bytes_per_rank"][item.what] = item.bytes;
  for (const char* name : slurm_variables) {
    if (const char* value = std::getenv(name)) json["slurm"][name] = value;
  }
  return json;
}

// All scales and batches are in samples. null means unbounded.
Json noise_to_json(const NoiseSummary& s) {
  const auto end = [](std::optional<double> value) { return value ? Json(*value) : Json(); };
  Json json = {{"scale", s.scale.value},
               {"scale_low", end(s.scale.low)},
               {"scale_high", end(s.scale.high)},
               {"trace", s.mean.trace},
               {"gradient", s.mean.gradient},
               {"training_set",
                {{"samples", s.training_samples},
                 {"scale", s.scale_of_training_set()},
                 {"gradient", of_training_set(s.mean, s.training_samples).gradient}}},
               {"batches", Json::array()}};
  if (s.characters_per_sample) json["scale_characters"] = s.scale.value * *s.characters_per_sample;
  for (const NoiseOfGroup& g : s.groups)
    json["groups"].push_back({{"name", g.name},
                              {"scale", g.scale.value},
                              {"scale_low", end(g.scale.low)},
                              {"scale_high", end(g.scale.high)},
                              {"trace", g.mean.trace},
                              {"gradient", g.mean.gradient}});
  for (const PredictedBatch& b : predicted_batches(s))
    json["batches"].push_back({{"batch", b.batch}, {"gain", b.gain}, {"efficiency", b.efficiency}});
  return json;
}

Json times_to_json(const StepTimes& times) {
  Json json;
  for (const StepPart& part : step_parts)
    if (const double seconds = times.*part.seconds; part.in_every_run || seconds > 0) json[part.name] = seconds;
  return json;
}

}  // namespace

void record_start(const std::string& run_dir, const RunRecord& record) {
  const Json before = read_record(run_dir);
  Json starts = before.contains("starts") ? before["starts"] : Json::array();
  // A start without an outcome was killed before it could write one.
  if (!starts.empty() && starts.back().is_object() && !starts.back().contains("outcome")) {
    starts.back()["outcome"] = "killed";
  }
  starts.push_back(start_to_json(record));
  write_record(run_dir, {{"name", record.plan.experiment.name}, {"outcome", "not ended"}, {"starts", starts}});
}

bool has_finished(const std::string& run_dir) {
  const Json json = read_record(run_dir);
  return value_or_null(json, "outcome") == "finished";
}

void record_stop_cost(const std::string& run_dir, const StopCost& cost) {
  Json stop = {{"checkpoint_bytes", cost.checkpoint.bytes}, {"checkpoint_seconds", cost.checkpoint.seconds}};
  if (cost.step_seconds > 0) stop["step_seconds"] = cost.step_seconds;
  record_in_last_start(run_dir, "stop_cost", stop);
}

void record_bound(const std::string& run_dir, const StepBound& bound) {
  Json b = {{"rates", bound.rates},
            {"ranks", bound.ranks},
            {"replicas", bound.replicas},
            {"flops_per_sample", bound.flops_per_sample},
            {"flops_per_second", bound.flops_per_second}};
  if (bound.bytes_per_second > 0) {
    b["bytes_per_sample"] = bound.bytes_per_sample;
    b["bytes_per_second"] = bound.bytes_per_second;
    b["seconds_per_update"] = bound.seconds_per_update;
  }
  b["seconds_per_sample"] = bound.seconds_per_sample;
  record_in_last_start(run_dir, "bound", b);
}

std::optional<StopCost> recorded_stop_cost(const std::string& run_dir) {
  const Json json = read_record(run_dir);
  const Json& starts = value_or_null(json, "starts");
  for (auto start = starts.rbegin(); start != starts.rend(); ++start) {
    const Json& stop = value_or_null(*start, "stop_cost");
    const auto number = [&](const char* key) { return real_in(value_or_null(stop, key)).value_or(0); };
    const auto bytes = integer_in<std::int64_t>(value_or_null(stop, "checkpoint_bytes")).value_or(0);
    if (bytes != 0) return StopCost{{bytes, number("checkpoint_seconds")}, number("step_seconds")};
  }
  return std::nullopt;
}

void record_end(const std::string& run_dir, const RunOutcome& outcome) {
  const RunProgress& progress = outcome.progress;
  Json json = read_record(run_dir);
  if (json.is_null()) json["starts"] = Json::array({Json::object()});
  Json end;
  end["ended"] = utc_time();
  end["outcome"] = outcome.outcome;
  put(end, "end", outcome.end);
  put(end, "thrown_at", outcome.thrown_at);
  end["final_step"] = progress.position.step;
  end["elapsed_seconds"] = progress.elapsed_seconds;
  if (progress.has_best) {
    // JSON would store a value that is not finite as null.
    const double loss = progress.best_loss;
    const Json value = std::isfinite(loss) ? Json(loss) : Json(cat(loss));
    end["best"] = {{"metric", "validation_loss"}, {"value", value}, {"step", progress.best_step}};
  }
  if (outcome.noise) end["noise"] = noise_to_json(*outcome.noise);
  for (const auto& [part, joules] : outcome.energy_joules) end["energy_joules"][part] = joules;
  for (const auto& [staleness, updates] : outcome.staleness) end["staleness"][std::to_string(staleness)] = updates;
  if (progress.dropped > 0) end["dropped_gradients"] = progress.dropped;
  for (const StepTimes& times : outcome.rank_times) end["rank_seconds"].push_back(times_to_json(times));
  if (outcome.rank_bytes.size() > 1)
    for (const SentBytes& b : outcome.rank_bytes)
      end["rank_bytes"].push_back({{"sent", b.by_message}, {"shared", b.through_memory}});
  json["starts"].back().update(end);
  Json result = {{"name", json.value("name", "")}};
  result.update(end);
  result["starts"] = json["starts"];
  write_record(run_dir, result);
}

std::string utc_time() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

}  // namespace ringtrain
