#include "study/trials.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/hash.h"
#include "base/rounding.h"
#include "base/table.h"
#include "base/text.h"
#include "base/utf8.h"
#include "config/reader.h"
#include "config/schema.h"
#include "config/schema_text.h"

namespace ringtrain {
namespace {

constexpr std::int64_t most_ranks = 1'000'000;

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
  const std::string is = cat(rule.expression.place().prefix(), rule.key, ": ", rule.expression.text(), " is ", value);
  if (std::abs(value - whole) > 1e-9 * std::max(1.0, std::abs(value)))
    throw Error(cat(is, ", expected an integer"), "round(...), floor(...) and ceil(...) make one.");
  if (std::abs(whole) > 9e15)
    throw Error(cat(is, ", which is too large, expected an integer from -9e15 to 9e15"), "Change this rule.");
  return std::to_string(static_cast<std::int64_t>(whole));
}

// The keys of one trial while they are computed. The varied keys are set first. Rules then compute other keys from
// them.
class TrialKeys {
 public:
  explicit TrialKeys(const Study& study) : study_(study), draft_(study.base) {}

  // Sets a key. Throws Error at the setting's place.
  void set(const Setting& setting) {
    if (setting.key == ranks_key) {
      ranks_ = whole_number(setting, most_ranks);
    } else if (setting.key == per_rank_key) {
      per_rank_ = whole_number(setting, 2147483647);
    } else {
      draft_.set(setting.key, setting.value, setting.place);
      if (std::ranges::count(changed_, setting.key) == 0) changed_.push_back(setting.key);
    }
  }

  // Applies all rules. A rule is applied after the rules whose results it reads. Throws Error if rules need each other,
  // if a result is not valid for its key, and if batch_per_rank x ranks is not batch.global.
  void apply_rules() {
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

  bool fulfils(const std::vector<Comparison>& conditions) {
    return std::ranges::all_of(conditions, [&](const Comparison& c) {
      return c.holds([&](const Expression::Name& name) { return value_of(name, c.left.place()); });
    });
  }

  // Sets the keys of the study's limits. Returns the samples of the trial by limits.samples, or 0 without it.
  std::int64_t apply_limits() {
    const Limits& limits = study_.limits;
    const std::int64_t samples = limit_of_samples();
    const auto is_limited = [&](const char* key) {
      return std::ranges::count(limits.settings, key, &Setting::key) > 0;
    };
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

  const ExperimentDraft& draft() const { return draft_; }
  std::int64_t ranks() const { return ranks_; }
  std::optional<std::int64_t> batch_per_rank() const { return per_rank_; }  // empty if the study does not set it
  const std::vector<std::string>& changed() const { return changed_; }      // keys of the experiment, as they were set

 private:
  double value_of(const Expression::Name& name, const TextPlace& place) {
    if (name.name == "ranks" || name.name == ranks_key) {
      apply_rule_of(ranks_key);
      return static_cast<double>(ranks_);
    }
    if (name.name != per_rank_key) {
      apply_rule_of(name.name);
      const Field& field = *find_field(name.name);
      if (field.required_ && !draft_.is_given(field.key))
        throw Error(cat(place.prefix(name.offset), name.name, " is not given, neither by the study nor by ",
                        study_.experiment));
      return number_of(field, draft_.values());
    }
    apply_rule_of(per_rank_key);
    if (per_rank_) return static_cast<double>(*per_rank_);
    return value_of({"batch.global", name.offset}, place) / value_of({"ranks", name.offset}, place);
  }

  void apply(const Rule& rule) {
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
      const double value =
          rule.expression.evaluate([&](const Expression::Name& name) { return value_of(name, place); });
      const Field* field = find_field(rule.key);
      const bool integer = field == nullptr || is_integer(*field);
      set({rule.key, integer ? integer_text(rule, value) : shortest(value), place.prefix()});
    }
    progress = Progress::done;
  }

  std::int64_t limit_of_samples() {
    if (!study_.limits.samples) return 0;
    const Expression& samples = *study_.limits.samples;
    const TextPlace& place = samples.place();
    const BatchConfig& sizes = draft_.values().batch;
    if (!sizes.schedule.empty() || sizes.follow_noise > 0)
      throw Error(cat(place.prefix(), study_.budget ? "budget" : "limits",
                      ".samples where the batch changes on the way, expected ",
                      study_.budget ? "search: all with " : "", "limits.epochs"));
    const double value = samples.evaluate([&](const Expression::Name& name) { return value_of(name, place); });
    if (!(value >= 1 && value <= 1e15))
      throw Error(
          cat(place.prefix(), samples.text(), " is ", value, ", expected the samples of a trial, from 1 to 1e15"));
    return std::llround(std::ceil(value));
  }

  void apply_rule_of(std::string_view key) {
    for (const Rule& rule : study_.rules)
      if (rule.key == key) apply(rule);
  }

  enum class Progress { waiting, under_way, done };
  const Study& study_;
  ExperimentDraft draft_;
  std::int64_t ranks_ = 1;
  std::optional<std::int64_t> per_rank_;
  std::vector<Progress> rules_;
  std::vector<std::string> changed_;
};

constexpr std::size_t longest_name = 100;

std::string hash_of(const std::string& text) {
  return printed("%08llx", static_cast<unsigned long long>(fnv1a(text) & 0xffffffff));
}

// Writes [30, 60, 80] as 30-60-80. A character that a folder's name cannot have becomes '-', and a hash of the value is
// added.
std::string folder_text(const std::string& value) {
  std::string out;
  bool exact = true;
  for (const char c : value) {
    if (c == '[' || c == ']' || c == ' ') continue;
    if (c == ',') {
      out += '-';
      continue;
    }
    const bool allowed = is_folder_name(std::string("a") + c);
    out += allowed ? c : '-';
    exact = exact && allowed;
  }
  if (out.empty()) return "none";
  return exact ? out : cat(out, "-", hash_of(value));
}

std::string short_name(const Field& field) {
  const std::string_view leaf = leaf_of(field.key);
  const auto same = std::ranges::count_if(schema(), [&](const Field& f) {
    return leaf_of(f.key) == leaf && (&f == &field || !f.off_by_default_);  // a new key leaves other names as they are
  });
  return std::string(same == 1 ? leaf : field.key);
}

// Returns the name of a trial. `taken` has the choice of each axis, in the order of the axes. The name has parts of the
// form key-value or group-case, joined by '_'. There is a part for the ranks (if the study varies them and there is
// more than one), one for every varied key whose value is not the experiment's (in the schema's order), one for every
// group whose case changes a value, and one for the seed. A key is written without its section if no other section has
// a key of that name. A value with characters that a folder's name cannot have ends in a hash. So does a name that is
// too long. If nothing differs from the experiment, the name is "unchanged".
std::string trial_name(const Study& study, const std::vector<const Choice*>& taken,
                       const std::vector<Setting>& drawn_and_seed, const TrialKeys& keys) {
  const Experiment &base = study.base.values(), &own = keys.draft().values();
  const auto changes = [&](const Setting& setting) {
    if (setting.key == ranks_key) return keys.ranks() != 1;
    const Field* field = find_field(setting.key);
    return field == nullptr || value_text(*field, base) != value_text(*field, own);
  };
  std::vector<std::string> names, groups;  // parts for keys outside groups; parts "group-case"
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const bool differs = std::ranges::any_of(taken[i]->settings, changes);
    if (differs && study.axes[i].is_group) groups.push_back(cat(study.axes[i].name, "-", taken[i]->name));
    if (differs && !study.axes[i].is_group) names.push_back(study.axes[i].name);
  }
  for (const Setting& setting : drawn_and_seed)
    if (changes(setting)) names.push_back(setting.key);

  std::string name;
  const auto add = [&name](const std::string& part) { name += cat(name.empty() ? "" : "_", part); };
  const auto varied = [&](std::string_view key) { return std::ranges::count(names, key) > 0; };
  if (varied(ranks_key)) add(cat("ranks-", keys.ranks()));
  if (varied(per_rank_key)) add(cat("batch_per_rank-", keys.batch_per_rank().value_or(0)));
  for (const Field& field : schema())
    if (field.key != "seed" && varied(field.key)) add(cat(short_name(field), "-", folder_text(value_text(field, own))));
  std::ranges::sort(groups);
  for (const std::string& group : groups) add(group);
  if (varied("seed")) add(cat("seed-", own.seed));
  if (name.empty()) return "unchanged";
  return name.size() <= longest_name ? name : cat(name.substr(0, longest_name - 9), "-", hash_of(name));
}

class TrialMaker {
 public:
  explicit TrialMaker(const Study& study) : study_(study) {}

  Trials make() {
    count_choices();
    choose(0);
    if (trials_.list.empty()) {
      const Comparison& first = study_.conditions.front();
      throw Error(cat(first.left.place().prefix(), "no trial is left: none of ", trials_.choices, " fulfils ",
                      first.text(), study_.conditions.size() > 1 ? " and the other conditions" : ""));
    }
    check_ranks();
    check_names();
    return std::move(trials_);
  }

 private:
  void count_choices() {
    std::size_t count = std::max<std::size_t>(1, study_.draws.count) * std::max<std::size_t>(1, study_.seeds.size());
    for (const Axis& axis : study_.axes) {
      count *= axis.choices.size();
      if (count > most_trials) break;
    }
    if (count > most_trials)
      throw Error(cat(study_.path, ": more than ", most_trials, " trials, expected fewer values, draws or repeats"));
  }

  // Combines all choices of the axes from `axis` on.
  void choose(std::size_t axis) {
    if (axis == study_.axes.size()) return draw();
    for (const Choice& choice : study_.axes[axis].choices) {
      taken_.push_back(&choice);
      choose(axis + 1);
      taken_.pop_back();
    }
  }

  void draw() {
    const std::uint32_t points = std::max<std::uint32_t>(1, study_.draws.count);
    for (std::uint32_t point = 0; point < points; ++point) {
      const std::vector<Setting> drawn = drawn_settings(study_.draws, study_.seed, point);
      if (study_.seeds.empty()) add(drawn);
      for (const Setting& seed : study_.seeds) {
        std::vector<Setting> with_seed = drawn;
        with_seed.push_back(seed);
        add(with_seed);
      }
    }
  }

  std::string point_name(const std::vector<Setting>& drawn_and_seed, const TrialKeys& keys) const {
    std::vector<Setting> drawn = drawn_and_seed;
    std::erase_if(drawn, [](const Setting& setting) { return setting.key == "seed"; });
    return trial_name(study_, taken_, drawn, keys);
  }

  void add(const std::vector<Setting>& drawn_and_seed) {
    ++trials_.choices;
    TrialKeys keys(study_);
    for (const Choice* choice : taken_)
      for (const Setting& setting : choice->settings) keys.set(setting);
    for (const Setting& setting : drawn_and_seed) keys.set(setting);
    Trial trial;
    trial.name = trial_name(study_, taken_, drawn_and_seed, keys);
    trial.point = point_name(drawn_and_seed, keys);
    try {
      keys.apply_rules();
      if (!keys.fulfils(study_.conditions)) {
        ++trials_.left_out;
        return;
      }
      trial.samples = keys.apply_limits();
      trial.experiment = keys.draft().finish();
    } catch (const Error& e) {
      throw Error(cat(e.what(), " (trial ", trial.name, ")"), e.hint(), e.where());
    }
    trial.ranks = keys.ranks();
    for (const std::string& key : keys.changed())
      trial.overrides.push_back(cat(key, "=", override_value(*find_field(key), keys.draft())));
    note_ranks(keys);
    keep(std::move(trial));
  }

  // Returns the field's value. Text has no quotes here, although it may need them in a file.
  static std::string override_value(const Field& field, const ExperimentDraft& draft) {
    if (!draft.is_given(field.key)) return std::string(no_value);  // a trial has taken it back to its default
    const ConstMember member = member_of(field, draft.values());
    const auto* text = std::get_if<const std::string*>(&member);
    return text != nullptr ? **text : value_text(field, draft.values());
  }

  void keep(Trial trial) {
    const auto [first, is_new] =
        resolved_.emplace(cat(trial.ranks, "\n", to_yaml(trial.experiment)), trials_.list.size());
    if (is_new)
      trials_.list.push_back(std::move(trial));
    else if (Trial& same = trials_.list[first->second];
             same.name != trial.name && std::ranges::count(same.also, trial.name) == 0)
      same.also.push_back(trial.name);
  }

  // Remembers the ranks with which each batch_per_rank occurs, if nothing else decides the batch.
  void note_ranks(const TrialKeys& keys) {
    const bool implied = std::ranges::any_of(study_.rules, [](const Rule& rule) { return rule.implied; });
    if (implied && keys.batch_per_rank()) ranks_of_[*keys.batch_per_rank()].insert(keys.ranks());
  }

  void check_ranks() const {
    for (const auto& [per_rank, ranks] : ranks_of_) {
      if (ranks.size() < 2) continue;
      const std::string arithmetic = joined(ranks, ", ", [each = per_rank](std::int64_t count) {
        return cat(count, count == 1 ? " rank x " : " ranks x ", each, " = ", count * each);
      });
      const std::int64_t most = *ranks.rbegin() * per_rank;
      throw Error(cat(place_of_ranks(), "ranks_per_trial would change batch.global (", arithmetic,
                      " samples a step), and no rule says so"),
                  cat("rules: {batch_per_rank: ", most,
                      " / ranks} in its place compares ranks at equal batch; "
                      "rules: {batch.global: batch_per_rank * ranks} says that it is meant."));
    }
  }

  std::string place_of_ranks() const {
    for (const Axis& axis : study_.axes)
      for (const Choice& choice : axis.choices)
        for (const Setting& setting : choice.settings)
          if (setting.key == ranks_key) return setting.place;
    for (const Rule& rule : study_.rules)
      if (rule.key == ranks_key) return rule.expression.place().prefix();
    return study_.path + ": ";
  }

  // Throws Error if two different trials have the same name, because the name is the trial's folder.
  void check_names() const {
    std::map<std::string, const Trial*> seen;
    for (const Trial& trial : trials_.list)
      if (!seen.emplace(trial.name, &trial).second)
        throw Error(cat(study_.path, ": two different trials are called ", trial.name),
                    "Give the values of one of them as cases with names of their own.");
  }

  const Study& study_;
  Trials trials_;
  std::vector<const Choice*> taken_;
  std::map<std::string, std::size_t> resolved_;              // ranks and experiment -> place in the list
  std::map<std::int64_t, std::set<std::int64_t>> ranks_of_;  // batch_per_rank -> ranks
};

}  // namespace

Trials make_trials(const Study& study) {
  return TrialMaker(study).make();
}

std::vector<std::size_t> share_of(const Trials& trials, std::int64_t k, std::int64_t n) {
  if (n < 1 || k < 0 || k > n)
    throw Error(cat("--index ", k, "/", n, ", expected a share from 1/N to N/N (0/N is the last one)"));
  std::vector<std::size_t> order(trials.list.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) {
    const std::string& name = trials.list[i].name;
    return std::pair(fnv1a(name), name);
  });
  std::vector<std::size_t> share;
  for (std::size_t i = 0; i < order.size(); ++i)
    if (i % static_cast<std::size_t>(n) == static_cast<std::size_t>(k % n)) share.push_back(order[i]);
  std::ranges::sort(share);
  return share;
}

}  // namespace ringtrain
