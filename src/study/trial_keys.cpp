#include "study/trial_keys.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/number_in_text.h"
#include "base/rounding.h"
#include "base/utf8.h"
#include "config/schema.h"

namespace ringtrain {
namespace {

double number_of(const Field& field, const Experiment& experiment) {
  const ConstMember member = member_of(field, experiment);
  if (const auto* integer = std::get_if<const std::int64_t*>(&member)) return static_cast<double>(**integer);
  if (const auto* seed = std::get_if<const std::uint64_t*>(&member)) return static_cast<double>(**seed);
  return *std::get<const double*>(member);
}

std::int64_t whole_number(const Setting& setting, std::int64_t most) {
  std::int64_t value = 0;
  if (!read_number(setting.value, value) || value < 1 || value > most)
    throw Error(
        cat(setting.place, setting.key, " is ", shown(setting.value), ", expected an integer from 1 to ", most));
  return value;
}

// Returns the value as an integer. Throws Error if the value differs from an integer by more than rounding.
std::string integer_text(const Rule& rule, double value) {
  const double whole = std::round(value);
  if (std::abs(value - whole) > 1e-9 * std::max(1.0, std::abs(value)) || std::abs(whole) > 9e15)
    throw Error(cat(rule.expression.place().prefix(), rule.key, ": ", rule.expression.text(), " is ", value,
                    ", expected an integer"),
                "round(...), floor(...) and ceil(...) make one.");
  return std::to_string(static_cast<std::int64_t>(whole));
}

}  // namespace

void TrialKeys::set(const Setting& setting) {
  if (setting.key == ranks_key) {
    ranks_ = whole_number(setting, most_ranks);
  } else if (setting.key == per_rank_key) {
    per_rank_ = whole_number(setting, 2147483647);
  } else {
    draft_.set(setting.key, setting.value, setting.place);
    if (std::ranges::count(changed_, setting.key) == 0) changed_.push_back(setting.key);
  }
}

void TrialKeys::apply_rules() {
  rules_.assign(study_.rules.size(), Progress::waiting);
  for (const Rule& rule : study_.rules) apply(rule);
  const std::int64_t batch = draft_.values().batch.global;
  if (per_rank_ && *per_rank_ * ranks_ != batch)
    throw Error(
        cat(study_.path, ": batch_per_rank ", *per_rank_, " x ", ranks_, ranks_ == 1 ? " rank" : " ranks", " = ",
            *per_rank_ * ranks_, ", but batch.global is ", batch),
        "Leave one of the three to a rule: batch.global: batch_per_rank * ranks, batch_per_rank: batch.global / "
        "ranks, or ranks_per_trial: batch.global / batch_per_rank.");
}

void TrialKeys::apply(const Rule& rule) {
  Progress& progress = rules_[static_cast<std::size_t>(&rule - study_.rules.data())];
  if (progress == Progress::done) return;
  if (progress == Progress::under_way)
    throw Error(cat(rule.expression.place().prefix(), "the rule of ", rule.key, " needs its own result"),
                "Rules that read each other need a key that is varied, or the experiment's.");
  progress = Progress::under_way;
  const TextPlace& place = rule.expression.place();
  // If only some cases set batch_per_rank, the others keep the experiment's batch.
  if (rule.implied) apply_rule_of(per_rank_key);
  if (!rule.implied || per_rank_) {
    const double value = rule.expression.evaluate([&](const Expression::Name& name) { return value_of(name, place); });
    const Field* field = find_field(rule.key);
    const bool integer = field == nullptr || is_integer(*field);
    set({rule.key, integer ? integer_text(rule, value) : shortest(value), place.prefix()});
  }
  progress = Progress::done;
}

void TrialKeys::apply_rule_of(std::string_view key) {
  for (const Rule& rule : study_.rules)
    if (rule.key == key) apply(rule);
}

double TrialKeys::value_of(const Expression::Name& name, const TextPlace& place) {
  if (name.name == "ranks" || name.name == ranks_key) {
    apply_rule_of(ranks_key);
    return static_cast<double>(ranks_);
  }
  if (name.name != per_rank_key) {
    apply_rule_of(name.name);
    const Field& field = *find_field(name.name);
    if (field.required_ && !draft_.is_given(field.key))
      throw Error(
          cat(place.prefix(name.offset), name.name, " is not given, neither by the study nor by ", study_.experiment));
    return number_of(field, draft_.values());
  }
  apply_rule_of(per_rank_key);
  if (per_rank_) return static_cast<double>(*per_rank_);
  return value_of({"batch.global", name.offset}, place) / value_of({"ranks", name.offset}, place);
}

bool TrialKeys::fulfils(const std::vector<Comparison>& conditions) {
  return std::ranges::all_of(conditions, [&](const Comparison& c) {
    return c.holds([&](const Expression::Name& name) { return value_of(name, c.left.place()); });
  });
}

std::int64_t TrialKeys::limit_of_samples() {
  if (!study_.limits.samples) return 0;
  const Expression& samples = *study_.limits.samples;
  const TextPlace& place = samples.place();
  const BatchConfig& sizes = draft_.values().batch;
  if (!sizes.schedule.empty() || sizes.follow_noise > 0)
    throw Error(cat(place.prefix(), study_.budget ? "budget" : "limits",
                    ".samples where the batch changes on the way, expected ", study_.budget ? "search: all with " : "",
                    "limits.epochs"));
  const double value = samples.evaluate([&](const Expression::Name& name) { return value_of(name, place); });
  if (!(value >= 1 && value <= 1e15))
    throw Error(
        cat(place.prefix(), samples.text(), " is ", value, ", expected the samples of a trial, from 1 to 1e15"));
  return std::llround(std::ceil(value));
}

std::int64_t TrialKeys::apply_limits() {
  const Limits& limits = study_.limits;
  const std::int64_t samples = limit_of_samples();
  const auto is_limited = [&](const char* key) { return std::ranges::count(limits.settings, key, &Setting::key) > 0; };
  if (limits.ends_by_count()) {
    const std::string place = limits.samples ? limits.samples->place().prefix() : limits.settings.front().place;
    const std::int64_t batch = draft_.values().batch.global;
    const std::int64_t steps = samples > 0 && batch > 0 ? divide_up(samples, batch) : 0;
    if (!is_limited("stop.epochs")) set({"stop.epochs", "0", place});
    set({"stop.steps", std::to_string(steps), place});
  }
  for (const Setting& setting : limits.settings) set(setting);
  return samples;
}

}  // namespace ringtrain
