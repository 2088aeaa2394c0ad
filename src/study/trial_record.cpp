#include "study/trial_record.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "config/schema.h"
#include "run/folder.h"
#include "run/loss_watch.h"
#include "run/record.h"

namespace ringtrain {
namespace {

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
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

template <class T>
void put(Json& json, const char* key, const std::optional<T>& value) {
  if (value) json[key] = *value;
}

Json to_json(const TrialOutcome& o) {
  Json json = {{"outcome", o.outcome},
               {"final_step", o.final_step},
               {"samples", o.samples},
               {"elapsed_seconds", o.elapsed_seconds}};
  if (!o.end.empty()) json["end"] = o.end;
  put(json, "loss", o.loss);
  put(json, "accuracy", o.accuracy);
  put(json, "validation_loss", o.validation_loss);
  put(json, "validation_accuracy", o.validation_accuracy);
  put(json, "best_validation_loss", o.best_validation_loss);
  put(json, "best_validation_accuracy", o.best_validation_accuracy);
  put(json, "best_step", o.best_step);
  if (o.ran_away) json["ran_away"] = true;
  return json;
}

TrialOutcome outcome_of(const Json& json) {
  TrialOutcome o;
  take(json, "outcome", o.outcome);
  take(json, "end", o.end);
  take(json, "final_step", o.final_step);
  take(json, "samples", o.samples);
  take(json, "elapsed_seconds", o.elapsed_seconds);
  take(json, "ran_away", o.ran_away);
  o.loss = number(json, "loss");
  o.accuracy = number(json, "accuracy");
  o.validation_loss = number(json, "validation_loss");
  o.validation_accuracy = number(json, "validation_accuracy");
  o.best_validation_loss = number(json, "best_validation_loss");
  o.best_validation_accuracy = number(json, "best_validation_accuracy");
  if (const auto step = json.find("best_step"); step != json.end()) o.best_step = integer_in<std::int64_t>(*step);
  return o;
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
  if (const auto starts = run.find("starts"); starts != run.end() && starts->is_array())
    for (const Json& start : *starts)
      if (start.is_object()) take(start, "guessing_loss", guessing);
  return guessing;
}

void read_metrics(const std::string& folder, double guessing, TrialOutcome& o) {
  std::ifstream in(folder + "/metrics.jsonl", std::ios::binary);
  std::vector<double> losses;
  std::int64_t first_step = 0;
  for (std::string text; std::getline(in, text);) {
    const Json line = parse_json(text);
    if (!line.is_object()) continue;  // a kill has cut the line off
    if (line.contains("validation_loss")) {
      add_evaluation(line, o);
      continue;
    }
    take(line, "step", o.final_step);
    take(line, "samples", o.samples);
    take(line, "elapsed_seconds", o.elapsed_seconds);
    o.loss = number(line, "loss");
    o.accuracy = number(line, "accuracy");
    if (losses.empty()) first_step = o.final_step;
    losses.push_back(o.loss.value_or(std::nan("")));
  }
  o.ran_away = ends_diverged(losses, first_step, guessing);
}

Json value_of(const Field& field, const Experiment& experiment) {
  Experiment copy = experiment;
  const Member member = field.member(copy);
  if (const auto* text = std::get_if<std::string*>(&member)) return **text;
  if (const auto* flag = std::get_if<bool*>(&member)) return **flag;
  if (const auto* integer = std::get_if<std::int64_t*>(&member)) return **integer;
  if (const auto* seed = std::get_if<std::uint64_t*>(&member)) return **seed;
  if (const auto* real = std::get_if<double*>(&member)) return **real;
  if (const auto* list = std::get_if<std::vector<double>*>(&member)) return **list;
  if (const auto* list = std::get_if<std::vector<std::string>*>(&member)) return **list;
  return value_text(field, experiment);  // lists of pairs stay text
}

}  // namespace

TrialOutcome read_outcome(const std::string& folder) {
  TrialOutcome o;
  std::ifstream in(folder + "/run.json");
  const Json run = parse_json(in);
  read_metrics(folder, run.is_object() ? guessing_in(run) : 0, o);
  if (!run.is_object()) return o;
  take(run, "outcome", o.outcome);
  take(run, "end", o.end);
  take(run, "final_step", o.final_step);
  take(run, "elapsed_seconds", o.elapsed_seconds);
  return o;
}

std::string overrides_to_json(const std::vector<std::string>& overrides, const Experiment& experiment) {
  Json json = Json::object();
  for (const std::string& text : overrides) {
    const std::string key = text.substr(0, text.find('='));
    if (const Field* field = find_field(key)) json[key] = value_of(*field, experiment);
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string to_json(const TrialRecord& r) {
  Json json = {{"name", r.name}};
  if (!r.also.empty()) json["also"] = r.also;
  json["overrides"] = Json::parse(r.overrides);
  json["ranks"] = r.ranks;
  json["seed"] = r.seed;
  json["state"] = to_string(r.state);
  if (r.starts > 0) json["starts"] = r.starts;
  if (!r.job.empty()) json["job"] = r.job;
  if (!r.updated.empty()) json["updated"] = r.updated;
  if (r.outcome) json["outcome"] = to_json(*r.outcome);
  if (r.rung > 0) json["rung"] = r.rung;
  for (const double loss : r.rung_losses) json["rung_losses"].push_back(std::isfinite(loss) ? Json(loss) : Json());
  if (r.paused) json["paused"] = true;
  if (r.rung > 0) json["left_behind"] = r.left_behind;
  if (!r.error.empty()) json["error"] = r.error;
  if (!r.hint.empty()) json["hint"] = r.hint;
  if (!r.thrown_at.empty()) json["thrown_at"] = r.thrown_at;
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
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
  r.starts = 0;
  r.job = r.updated = r.error = r.hint = r.thrown_at = "";
  r.outcome.reset();
  r.rung = 0;
  r.paused = r.left_behind = false;
  take(json, "starts", r.starts);
  take(json, "rung", r.rung);
  r.rung_losses.clear();
  if (const auto losses = json.find("rung_losses"); losses != json.end())
    for (const Json& loss : *losses) r.rung_losses.push_back(loss.is_number() ? loss.get<double>() : std::nan(""));
  take(json, "paused", r.paused);
  take(json, "left_behind", r.left_behind);
  take(json, "job", r.job);
  take(json, "updated", r.updated);
  take(json, "error", r.error);
  take(json, "hint", r.hint);
  take(json, "thrown_at", r.thrown_at);
  if (const auto outcome = json.find("outcome"); outcome != json.end() && outcome->is_object())
    r.outcome = outcome_of(*outcome);
  record = std::move(r);
  return true;
}

}  // namespace ringtrain
