#include "study/trial_record.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <new>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/output_file.h"
#include "base/system_limits.h"
#include "config/schema.h"
#include "config/schema_text.h"
#include "run/folder.h"
#include "run/metrics.h"
#include "run/run_end.h"
#include "run/run_record.h"

namespace ringtrain {
namespace {

constexpr const char* end_words[] = {"finished", "paused", "stopped", "diverged", "failed"};  // of TrialReport::End

template <class T>
void take(const Json& json, const char* key, T& value) {
  if (const auto found = json.find(key); found != json.end()) try {
      if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
        value = integer_in<T>(*found).value_or(value);
      } else {
        value = found->template get<T>();
      }
    } catch (const Json::exception&) {  // a value of another type counts as missing
    }
}

std::optional<double> number(const Json& json, const char* key) {
  return real_in(value_or_null(json, key));
}

template <class T>
void take(const Json& json, const char* key, std::optional<T>& value) {
  if constexpr (std::is_integral_v<T>) {
    value = integer_in<T>(value_or_null(json, key));
  } else {
    value = number(json, key);
  }
}

template <class T>
void put(Json& json, const char* key, const T& value) {
  json[key] = value;
}

template <class T>
void put(Json& json, const char* key, const std::optional<T>& value) {
  if (value) json[key] = *value;
}

// Visits what trial.json has of an outcome, in its order. `visit` gets the key and the value; false: it is not written.
template <class Outcome, class Visit>
void each_field(Outcome& o, const Visit& visit) {
  visit("outcome", o.outcome);
  visit("final_step", o.final_step);
  visit("samples", o.samples);
  visit("elapsed_seconds", o.elapsed_seconds);
  visit("end", o.end, !o.end.empty());
  visit("loss", o.loss);
  visit("accuracy", o.accuracy);
  visit("validation_loss", o.validation_loss);
  visit("validation_accuracy", o.validation_accuracy);
  visit("best_validation_loss", o.best_validation_loss);
  visit("best_validation_accuracy", o.best_validation_accuracy);
  visit("best_step", o.best_step);
  visit("ran_away", o.ran_away, o.ran_away);
}

void put(Json& json, const char* key, const std::optional<TrialOutcome>& outcome) {
  if (!outcome) return;
  Json& object = json[key] = Json::object();
  each_field(*outcome, [&](const char* name, const auto& value, bool is_written = true) {
    if (is_written) put(object, name, value);
  });
}

void take(const Json& json, const char* key, std::optional<TrialOutcome>& outcome) {
  const Json& object = value_or_null(json, key);
  if (!object.is_object()) return;
  each_field(outcome.emplace(), [&](const char* name, auto& value, bool = true) { take(object, name, value); });
}

// The losses of rungs. null: NaN.
void put(Json& json, const char* key, const std::vector<double>& losses) {
  for (const double loss : losses) json[key].push_back(std::isfinite(loss) ? Json(loss) : Json());
}

void take(const Json& json, const char* key, std::vector<double>& losses) {
  for (const Json& loss : value_or_null(json, key)) losses.push_back(real_in(loss).value_or(std::nan("")));
}

// Visits the progress of a trial as each_field() of an outcome visits that.
template <class Record, class Visit>
void each_progress_field(Record& r, const Visit& visit) {
  visit("starts", r.starts, r.starts > 0);
  visit("job", r.job, !r.job.empty());
  visit("updated", r.updated, !r.updated.empty());
  visit("outcome", r.outcome);
  visit("rung", r.rung, r.rung > 0);
  visit("rung_losses", r.rung_losses);
  visit("paused", r.paused, r.paused);
  visit("left_behind", r.left_behind, r.rung > 0);
  visit("error", r.error, !r.error.empty());
  visit("hint", r.hint, !r.hint.empty());
  visit("thrown_at", r.thrown_at, !r.thrown_at.empty());
}

void add_evaluation(const Json& line, TrialOutcome& o) {
  o.validation_loss = number(line, "validation_loss");
  o.validation_accuracy = number(line, "validation_accuracy");
  if (o.validation_loss && (!o.best_validation_loss || *o.validation_loss < *o.best_validation_loss)) {
    o.best_validation_loss = o.validation_loss;
    std::int64_t step = 0;
    take(line, "step", step);
    o.best_step = step;
  }
  if (o.validation_accuracy && (!o.best_validation_accuracy || *o.validation_accuracy > *o.best_validation_accuracy))
    o.best_validation_accuracy = o.validation_accuracy;
}

// Returns the loss of a model that guesses, as the newest start in run.json has it; 0: it is not known.
double guessing_in(const Json& run) {
  double guessing = 0;
  for (const Json& start : value_or_null(run, "starts")) take(start, "guessing_loss", guessing);
  return guessing;
}

void read_metrics(const std::string& folder, double guessing, TrialOutcome& o) {
  std::vector<double> losses;
  std::int64_t first_step = 0;
  for_each_record(folder, [&](const Json& line) {
    if (line.contains("validation_loss")) return add_evaluation(line, o);
    take(line, "step", o.final_step);
    take(line, "samples", o.samples);
    take(line, "elapsed_seconds", o.elapsed_seconds);
    o.loss = number(line, "loss");
    o.accuracy = number(line, "accuracy");
    if (losses.empty()) first_step = o.final_step;
    losses.push_back(o.loss.value_or(std::nan("")));
  });
  o.ran_away = ends_diverged(losses, first_step, guessing);
}

Json value_of(const Field& field, const Experiment& experiment) {
  const ConstMember member = member_of(field, experiment);
  if (const auto* text = std::get_if<const std::string*>(&member)) return **text;
  if (const auto* flag = std::get_if<const bool*>(&member)) return **flag;
  if (const auto* integer = std::get_if<const std::int64_t*>(&member)) return **integer;
  if (const auto* seed = std::get_if<const std::uint64_t*>(&member)) return **seed;
  if (const auto* real = std::get_if<const double*>(&member)) return **real;
  if (const auto* list = std::get_if<const std::vector<double>*>(&member)) return **list;
  if (const auto* list = std::get_if<const std::vector<std::int64_t>*>(&member)) return **list;
  if (const auto* list = std::get_if<const std::vector<std::string>*>(&member)) return **list;
  return value_text(field, experiment);  // lists of pairs stay text
}

}  // namespace

TrialOutcome read_outcome(const std::string& folder) {
  TrialOutcome o;
  std::ifstream in(cat(folder, "/", run_record_name));
  const Json run = parse_json(in);
  read_metrics(folder, run.is_object() ? guessing_in(run) : 0, o);
  if (!run.is_object()) return o;
  take(run, "outcome", o.outcome);
  take(run, "end", o.end);
  take(run, "final_step", o.final_step);
  take(run, "elapsed_seconds", o.elapsed_seconds);
  // An evaluation reaches the target, perhaps with averaged weights. The losses of the last batches may still be high.
  if (o.end == target_reached) o.ran_away = false;
  return o;
}

std::string overrides_to_json(const std::vector<std::string>& overrides, const Experiment& experiment) {
  Json json = Json::object();
  for (const std::string& text : overrides) {
    const std::string key = text.substr(0, text.find('='));
    if (const Field* field = find_field(key)) json[key] = value_of(*field, experiment);
  }
  return json_text(json);
}

std::string to_json(const TrialRecord& r) {
  Json json = {{"name", r.name}};
  if (!r.also.empty()) json["also"] = r.also;
  json["overrides"] = Json::parse(r.overrides);
  json["ranks"] = r.ranks;
  json["seed"] = r.seed;
  json["state"] = to_string(r.state);
  each_progress_field(r, [&](const char* key, const auto& value, bool is_written = true) {
    if (is_written) put(json, key, value);
  });
  return json_text(json, 2);
}

void write_trial_record(const std::string& folder, TrialRecord record) {
  record.updated = utc_time();
  write_file_atomically(cat(folder, "/", trial_file_name), to_json(record) + "\n");
}

bool read_trial_record(const std::string& folder, TrialRecord& record) {
  std::ifstream in(cat(folder, "/", trial_file_name));
  if (!in) return false;
  const Json json = parse_json(in);
  if (!json.is_object()) return false;
  std::string state;
  take(json, "state", state);
  const auto found = std::ranges::find(trial_states, state);
  if (found == std::end(trial_states)) return false;
  TrialRecord r = record;
  r.state = static_cast<TrialState>(found - std::begin(trial_states));
  each_progress_field(r, [&](const char* key, auto& value, bool = true) {
    value = {};
    take(json, key, value);
  });
  record = std::move(r);
  return true;
}

TrialReport report_of(const std::exception& error) {
  const bool diverged = dynamic_cast<const Diverged*>(&error) != nullptr;
  const bool no_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  return {diverged ? TrialReport::End::diverged : TrialReport::End::failed, no_memory ? out_of_memory : error.what(),
          no_memory ? "a smaller batch.micro, fewer trials at the same time (--ranks) or more memory for the job helps"
                    : hint_of(error),
          thrown_at(error)};
}

OutputKind report_file() {
  return json_output("report of ringtrain train", {"end", "error", "hint", "thrown_at"});
}

void write_report(const std::string& path, const TrialReport& report) try {
  std::error_code ignored;
  const bool is_cause = report.error.empty() || report.end == TrialReport::End::diverged;
  if (!is_cause && std::filesystem::is_regular_file(path, ignored)) return;
  const Json json = {{"end", end_words[static_cast<int>(report.end)]},
                     {"error", report.error},
                     {"hint", report.hint},
                     {"thrown_at", report.thrown_at}};
  // If this waited for the disk, the errors that follow from the cause could be written before it.
  write_output_at_once(path, json_text(json, 2) + "\n");
} catch (const std::exception&) {
}

std::optional<TrialReport> read_report(const std::string& path) {
  std::ifstream in(path);
  const Json json = parse_json(in);
  const auto text = [&](const char* key) { return text_in(value_or_null(json, key)).value_or(""); };
  const auto end = std::ranges::find(end_words, text("end"));
  if (end == std::end(end_words)) return std::nullopt;
  return TrialReport{static_cast<TrialReport::End>(end - std::begin(end_words)), text("error"), text("hint"),
                     text("thrown_at")};
}

}  // namespace ringtrain
