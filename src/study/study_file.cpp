#include "study/study_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "config/schema.h"
#include "config/schema_text.h"
#include "config/yaml_document.h"
#include "run/folder.h"
#include "study/branch_trials.h"

namespace ringtrain {
namespace {

constexpr std::string_view study_keys[] = {"name",  "experiment",      "seed",   "vary",   "draws",  "repeat",
                                           "rules", "ranks_per_trial", "search", "limits", "branch", "budget"};
constexpr double most_points = 10000;

class StudyReader {
 public:
  StudyReader(const std::string& yaml, const std::string& path, const std::vector<std::string>& overrides)
      : yaml_(yaml), path_(path), overrides_(overrides) {}

  Study read() {
    const YAML::Node document = load_yaml_document(yaml_, path_, "study");
    std::map<std::string, Entry> given;
    for (const Entry& entry : entries(document, path_, "the file", "name: my-study")) {
      if (std::ranges::count(study_keys, std::string_view(entry.key)) == 0) {
        const std::string near = find_field(entry.key) ? "; it is a key of the experiment, to be varied below vary:"
                                                       : nearest_word(entry.key, study_keys);
        throw Error(cat(entry.key_place, "unknown key ", shown(entry.key), near),
                    cat("Keys of a study: ", joined(study_keys), "."));
      }
      given.emplace(entry.key, entry);
    }
    if (given.contains("branch")) branch_.emplace(given.at("branch"), path_);
    for (const char* key : {"name", "experiment"})
      if (!given.contains(key) && !(branch_ && key == std::string("experiment")))
        throw Error(cat(path_, ":1:1: ", key, " is missing, expected ", key, ": and a value"));

    Study study(base_of(given));
    study.path = path_;
    study.overrides = overrides_;
    study_ = &study;
    study.experiment = given.contains("experiment") ? given.at("experiment").node.Scalar() : branch_->experiment();
    if (branch_) read_branch();
    const auto with = [&](const char* key, void (StudyReader::*read_entry)(const Entry&)) {
      if (given.contains(key)) (this->*read_entry)(given.at(key));
    };
    with("name", &StudyReader::read_name);
    if (given.contains("seed")) study.seed = static_cast<std::uint64_t>(integer_of(given.at("seed"), 0, 1e15));
    with("ranks_per_trial", &StudyReader::read_values);
    with("vary", &StudyReader::read_vary);
    with("draws", &StudyReader::read_draws);
    with("repeat", &StudyReader::read_repeat);
    with("limits", &StudyReader::read_limits);
    with("rules", &StudyReader::read_rules);
    imply_rule();
    read_search(given);
    if (!study.draws.keys.empty() && study.draws.count == 0)
      throw Error(cat(study.draws.keys[0].place, study.draws.keys[0].key, " is drawn, but draws is not given"),
                  "draws: {count: 16, sequence: sobol}");
    return study;
  }

 private:
  std::string place(const YAML::Node& node) const { return yaml_place(path_, node.Mark()); }

  // Throws Error unless a study may set the key. The key is one of the experiment or one of the study's own keys.
  void check_key(const Entry& entry, std::string_view what) const {
    const std::string& key = entry.key;
    if (key == ranks_key || key == per_rank_key) return;
    if (key == "name" || key == "run.dir" || key == "run.id")
      throw Error(cat(entry.key_place, key, " cannot be ", what, ": the study sets it itself"),
                  "A trial is results/<study>/<trial>/.");
    if (find_field(key) != nullptr) return;
    if (is_section(key))
      throw Error(cat(entry.key_place, key, " is a section, expected its keys with a dot"),
                  cat(key, ".",
                      leaf_of(std::ranges::find(schema(), key, [](const Field& f) { return section_of(f.key); })->key),
                      ": [...]"));
    constexpr std::string_view own[] = {ranks_key, per_rank_key};
    const std::string near = nearest_word(key, own);
    throw Error(cat(entry.key_place, "unknown key ", shown(key), near.empty() ? nearest_key(key, false) : near),
                "configs/README.md lists every key of an experiment, configs/studies/README.md those of a study.");
  }

  // Throws Error if another place of the study already sets the key.
  void claim(const std::string& key, const std::string& where) {
    std::string_view line = where;
    line.remove_prefix(path_.size() + 1);
    const auto [first, is_new] = claimed_.emplace(key, cat("at line ", line.substr(0, line.find(':'))));
    if (!is_new) throw Error(cat(where, key, " is already set ", first->second, ", expected in one place"));
  }

  void read_name(const Entry& entry) {
    const std::string& name = entry.node.IsScalar() ? entry.node.Scalar() : "";
    if (!is_folder_name(name))
      refuse(entry, "at most 100 letters, digits, '.', '_' and '-' that do not start with '.'");
    if (is_kept_name(name)) refuse(entry, "another name: results/" + name + " belongs to the program");
    study_->name = name;
  }

  ExperimentDraft base_of(const std::map<std::string, Entry>& given) {
    const auto experiment = given.find("experiment");
    if (experiment == given.end()) branch_->expect_run();
    ExperimentDraft base(experiment != given.end() ? experiment_path(experiment->second) : branch_->experiment());
    for (const std::string& text : overrides_) {
      base.apply_override(text);
      claimed_.emplace(text.substr(0, text.find('=')), "by the command line");
    }
    return base;
  }

  std::string experiment_path(const Entry& entry) const {
    namespace fs = std::filesystem;
    if (!entry.node.IsScalar() || entry.node.Scalar().empty()) refuse(entry, "the path of an experiment file");
    const std::string given = expand_path(entry.node.Scalar(), cat(entry.place, "experiment"));
    const std::string beside = (fs::path(path_).parent_path() / given).lexically_normal().string();
    std::error_code too_long;  // a path that is too long counts as missing
    const bool is_beside = fs::exists(beside, too_long);
    if (!is_beside && !fs::exists(given, too_long))
      throw Error(
          cat(entry.place, "there is no experiment file ", cut_to(beside, 1000),
              fs::path(given).is_absolute() ? "" : ", nor ", fs::path(given).is_absolute() ? "" : cut_to(given, 1000)),
          "The path is relative to the folder of the study file, or else to the working directory.");
    return is_beside ? beside : given;
  }

  // Adds the axis of the branches, which has one case for each point and multiple of the batch.
  void read_branch() {
    for (const std::string& text : branch_->overrides()) {
      const std::string key = text.substr(0, text.find('='));
      if (claimed_.contains(key)) continue;
      const Field& field = *find_field(key);
      if (value_text(field, study_->base.values()) == value_text(field, Experiment())) continue;
      study_->base.apply_override(text);
      study_->overrides.push_back(text);
    }
    Axis axis = branch_->axis(study_->base.values());
    for (const Setting& setting : axis.choices.front().settings) claim(setting.key, setting.place);
    study_->axes.push_back(std::move(axis));
  }

  void read_vary(const Entry& entry) {
    for (const Entry& axis : entries(entry.node, path_, "vary", "batch.global: [256, 1024]")) {
      if (!axis.node.IsMap()) {
        read_values(axis);
        continue;
      }
      bool of_maps = true;
      for (const auto& pair : axis.node) of_maps = of_maps && pair.second.IsMap();
      if (of_maps)
        read_group(axis);
      else
        read_range(axis);
    }
  }

  // Tells `key: null` and `key: ~` from a value that is missing.
  bool says_null(const YAML::Node& node) const {
    if (!node.IsNull() || node.Mark().is_null()) return false;
    std::string_view text = line_at(yaml_, node.Mark().line);
    text.remove_prefix(std::min(text.size(), static_cast<std::size_t>(node.Mark().column)));
    return text.starts_with('~') || text.starts_with(no_value);
  }

  // Returns the value as it follows the '=' of an override. Throws Error if it is missing.
  std::string value_of(const YAML::Node& node, const Entry& entry, const std::string& expected) const {
    const Field* field = find_field(entry.key);
    if (field != nullptr && !field->required_ && says_null(node)) return std::string(no_value);
    if (node.IsNull()) refuse({entry.key, node, "", entry.place}, expected);
    return override_text(node, entry);
  }

  // Reads one value or a list of values.
  void read_values(const Entry& entry) {
    check_key(entry, "varied");
    claim(entry.key, entry.key_place);
    Axis axis{entry.key, false, {}};
    const auto add = [&](const YAML::Node& node) {
      const std::string value = value_of(node, entry, "a list of values such as [1, 2, 4]");
      axis.choices.push_back({"", {{entry.key, value, place(node)}}});
    };
    if (entry.node.IsSequence())
      for (const YAML::Node& item : entry.node) add(item);
    else
      add(entry.node);
    if (axis.choices.empty()) throw Error(cat(entry.place, entry.key, " is an empty list, expected values"));
    study_->axes.push_back(std::move(axis));
  }

  // Reads a group. Each of its cases has a name and keys that change together.
  void read_group(const Entry& entry) {
    if (find_field(entry.key) != nullptr || is_section(entry.key))
      throw Error(cat(entry.place, entry.key, " has cases below it, but is a ",
                      find_field(entry.key) ? "key" : "section",
                      " of the experiment, expected another name for the group"));
    if (!is_folder_name(entry.key) || entry.key.find('.') != std::string::npos)
      throw Error(cat(entry.key_place, shown(entry.key), ": expected a name of letters, digits, '_' and '-'"));
    Axis axis{entry.key, true, {}};
    std::set<std::string> keys;
    for (const Entry& one : entries(entry.node, path_, entry.key, "a: {batch.global: 256}")) {
      if (!is_folder_name(one.key))
        throw Error(cat(one.key_place, shown(one.key), ": expected a name of letters, digits, '.', '_' and '-'"));
      Choice choice{one.key, {}};
      for (const Entry& setting : entries(one.node, path_, one.key, "{batch.global: 256}")) {
        check_key(setting, "varied");
        if (keys.insert(setting.key).second) claim(setting.key, setting.key_place);
        choice.settings.push_back({setting.key, value_of(setting.node, setting, "a value of this key"), setting.place});
      }
      axis.choices.push_back(std::move(choice));
    }
    if (axis.choices.empty()) throw Error(cat(entry.place, entry.key, " has no cases"));
    study_->axes.push_back(std::move(axis));
  }

  // Reads {uniform: [low, high]}, {log_uniform: [low, high], multiple_of: 32} or {log_grid: [low, high], points: 5}.
  void read_range(const Entry& entry) {
    static const std::string example = "a list, {log_uniform: [0.0001, 0.1]} or {log_grid: [0.0001, 0.1], points: 4}";
    check_key(entry, "varied");
    claim(entry.key, entry.key_place);
    const Field* field = find_field(entry.key);
    if (field != nullptr && !is_number(*field))
      throw Error(cat(entry.place, entry.key, " is not a number, expected a list of its values"));
    NumberRange range;
    range.integer = field == nullptr || is_integer(*field);
    std::string kind;
    std::int64_t points = 0;
    for (const Entry& part : entries(entry.node, path_, entry.key, "{log_uniform: [0.0001, 0.1]}")) {
      if (part.key == "points") {
        points = integer_of(part, 2, most_points);  // both ends are included
      } else if (part.key == "multiple_of") {
        if (!range.integer)
          throw Error(cat(part.key_place, "multiple_of with ", entry.key, ", which is not an integer"));
        range.multiple_of = integer_of(part, 1, 1e9);
      } else {
        constexpr std::string_view kinds[] = {"uniform", "log_uniform", "grid", "log_grid", "points", "multiple_of"};
        if (std::ranges::count(kinds, std::string_view(part.key)) == 0)
          throw Error(cat(part.key_place, "unknown key ", shown(part.key), nearest_word(part.key, kinds)),
                      "Expected " + example);
        if (!kind.empty())
          throw Error(cat(part.key_place, part.key, " together with ", kind, ", expected one of them"));
        kind = part.key;
        if (!part.node.IsSequence() || part.node.size() != 2) refuse(part, "[lowest, highest]");
        range.logarithmic = kind.starts_with("log_");
        const double least = range.logarithmic ? 1e-300 : -1e300;
        const auto bound = [&](std::size_t i) {
          const Entry item{part.key, part.node[i], part.key_place, place(part.node[i])};
          return number_of(item, least, 1e300, range.logarithmic ? "numbers above 0" : "numbers");
        };
        range.low = bound(0), range.high = bound(1);
        if (range.low >= range.high) refuse(part, "[lowest, highest] with lowest < highest");
      }
    }
    if (kind.empty()) throw Error(cat(entry.place, entry.key, ": expected ", example));
    const auto step = static_cast<double>(range.multiple_of);
    if (range.integer && std::ceil(range.low / step) > std::floor(range.high / step))
      throw Error(cat(entry.place, entry.key, ": no multiple of ", range.multiple_of, " lies from ", range.low, " to ",
                      range.high));
    const bool is_grid = kind.ends_with("grid");
    if (is_grid != (points > 0))
      throw Error(cat(entry.place, entry.key,
                      is_grid ? ": a grid without points" : ": points with values that are drawn", ", expected ",
                      is_grid ? "points: 4" : "draws: {count: 16} for the whole study"));
    if (!is_grid) {
      if (study_->draws.keys.size() == most_drawn_keys)
        throw Error(cat(entry.key_place, entry.key, " is one drawn key too many, expected at most ", most_drawn_keys));
      study_->draws.keys.push_back({entry.key, entry.place, range});
      return;
    }
    Axis axis{entry.key, false, {}};
    for (const std::string& value : grid_values(range, points))
      axis.choices.push_back({"", {{entry.key, value, entry.place}}});
    study_->axes.push_back(std::move(axis));
  }

  void read_draws(const Entry& entry) {
    constexpr std::string_view known[] = {"count", "sequence"};
    Draws& draws = study_->draws;
    if (draws.keys.empty())
      throw Error(cat(entry.key_place, "draws, but no key is drawn"),
                  "vary: {learning_rate.base: {log_uniform: [...]}}");
    for (const Entry& part : entries(entry.node, path_, "draws", "{count: 16, sequence: sobol}")) {
      if (part.key == "count")
        draws.count = static_cast<std::uint32_t>(integer_of(part, 1, most_points));
      else if (part.key == "sequence") {
        const std::string sequence = word_of(part, {"sobol", "halton", "random"});
        draws.sequence = sequence == "sobol"    ? Sequence::sobol
                         : sequence == "halton" ? Sequence::halton
                                                : Sequence::random;
      } else
        refuse_key(part, known);
    }
  }

  void read_repeat(const Entry& entry) {
    claim("seed", entry.key_place);
    if (branch_)
      throw Error(cat(entry.key_place,
                      "repeat together with branch: a branch keeps the seed of its run, from which the order of "
                      "the samples follows"),
                  "Train the run with several seeds, and give each a study of branches.");
    if (!entry.node.IsSequence()) {
      const std::int64_t times = integer_of(entry, 1, most_points);
      for (std::int64_t i = 0; i < times; ++i)
        study_->seeds.push_back(
            {"seed", std::to_string(study_->base.values().seed + static_cast<std::uint64_t>(i)), entry.place});
      return;
    }
    for (const YAML::Node& item : entry.node)
      study_->seeds.push_back({"seed", override_text(item, entry), place(item)});
    if (study_->seeds.empty()) refuse(entry, "how often, or a list of seeds");
  }

  // Reads a map of rules, or a list of rules and conditions.
  void read_rules(const Entry& entry) {
    if (!entry.node.IsSequence()) {
      for (const Entry& rule :
           entries(entry.node, path_, "rules", "learning_rate.base: 0.001 * sqrt(batch.global / 4096)"))
        read_rule(rule);
    } else {
      for (const YAML::Node& item : entry.node) {
        if (item.IsScalar()) {
          const Comparison condition = Comparison::parse(item.Scalar(), text_place(item));
          check_names(condition.left);
          check_names(condition.right);
          study_->conditions.push_back(condition);
          continue;
        }
        for (const Entry& rule :
             entries(item, path_, "a rule", "learning_rate.base: 0.001 * sqrt(batch.global / 4096)"))
          read_rule(rule);
      }
    }
  }

  void read_rule(const Entry& entry) {
    check_key(entry, "set by a rule");
    claim(entry.key, entry.key_place);
    const Field* field = find_field(entry.key);
    if (field != nullptr && !is_number(*field))
      throw Error(cat(entry.key_place, entry.key, " is not a number, and a rule gives a number"),
                  "Vary it with cases: vary: {recipe: {a: {" + entry.key + ": ...}, b: {...}}}");
    if (!entry.node.IsScalar()) refuse(entry, "an expression such as 0.001 * sqrt(batch.global / 4096)");
    Rule rule{entry.key, Expression::parse(entry.node.Scalar(), text_place(entry.node)), false};
    check_names(rule.expression);
    study_->rules.push_back(std::move(rule));
  }

  void check_names(const Expression& expression) const {
    for (const Expression::Name& name : expression.names()) {
      if (name.name == "ranks" || name.name == ranks_key || name.name == per_rank_key) continue;
      const std::string where = expression.place().prefix(name.offset);
      check_key({name.name, {}, where, where}, "read");
      if (!is_number(*find_field(name.name)))
        throw Error(cat(where, name.name, " is not a number, and a rule calculates with numbers"));
    }
  }

  // Finds the place of a scalar's text in its line, so that columns can be counted.
  TextPlace text_place(const YAML::Node& node) const {
    const std::string_view line = line_at(yaml_, node.Mark().line);
    const auto at = line.find(node.Scalar(), static_cast<std::size_t>(std::max(0, node.Mark().column)));
    if (at == std::string_view::npos)
      throw Error(place(node) + "an expression of several lines, or with escapes, expected one line of plain text");
    return {path_, node.Mark().line + 1, static_cast<int>(at) + 1};
  }

  void read_limits(const Entry& entry) {
    constexpr std::string_view known[] = {"epochs", "samples", "target", "seconds"};
    Limits& limits = study_->limits;
    for (const Entry& part : entries(entry.node, path_, "limits", "{epochs: 8}")) {
      if (part.key == "samples") {
        limits.samples = samples_of(part);
      } else if (part.key == "epochs" || part.key == "seconds") {
        if (!part.node.IsScalar()) refuse(part, "a number");
        limits.settings.push_back({"stop." + part.key, part.node.Scalar(), part.place});
      } else if (part.key == "target") {
        const std::vector<Entry> target = entries(part.node, path_, "target", "{validation_loss: 1.5}");
        if (target.size() != 1 || !target[0].node.IsScalar()) refuse(part, "one metric, as {validation_loss: 1.5}");
        limits.settings.push_back({"stop.target_metric", target[0].key, target[0].key_place});
        limits.settings.push_back({"stop.target_value", target[0].node.Scalar(), target[0].place});
      } else {
        refuse_key(part, known);
      }
    }
    if (branch_ && limits.ends_by_count())
      throw Error(
          cat(entry.key_place, "limits by epochs or samples together with branch, expected branch.samples alone"));
    for (const Setting& setting : limits.settings) claim(setting.key, setting.place);
    // A limit by count replaces both counts of the experiment.
    if (limits.ends_by_count()) claim("stop.steps", entry.key_place);
    if (limits.samples && std::ranges::count(limits.settings, "stop.epochs", &Setting::key) == 0)
      claim("stop.epochs", entry.key_place);
  }

  void read_search(const std::map<std::string, Entry>& given) {
    if (given.contains("search"))
      study_->search = word_of(given.at("search"), {"all", "halving"}) == "halving" ? Search::halving : Search::all;
    if (given.contains("budget")) read_budget(given.at("budget"));
  }

  // Reads the samples of each trial, which are a number or an expression.
  Expression samples_of(const Entry& entry) const {
    if (!entry.node.IsScalar()) refuse(entry, "a number such as 3000000, or an expression such as 20 * batch.global");
    Expression samples = Expression::parse(entry.node.Scalar(), text_place(entry.node));
    check_names(samples);
    if (samples.names().empty()) {
      const double value = samples.evaluate({});
      if (!(value >= 1 && value <= 1e15) || value != std::floor(value)) refuse(entry, "an integer from 1 to 1e15");
    }
    return samples;
  }

  // Reads {samples: 3000000, factor: 3, first: 100000, within: batch.global}.
  void read_budget(const Entry& entry) {
    constexpr std::string_view known[] = {"samples", "factor", "first", "within"};
    if (study_->search != Search::halving)
      throw Error(cat(entry.key_place, "budget without search: halving"), "limits: {samples: ...} ends every trial");
    if (branch_)
      throw Error(cat(entry.key_place, "budget together with branch, expected all branches to run to their end"));
    HalvingBudget& budget = study_->budget.emplace();
    Limits& limits = study_->limits;
    if (limits.ends_by_count())
      throw Error(
          cat(entry.key_place, "budget together with limits by epochs or samples, expected budget.samples alone"));
    for (const Entry& part : entries(entry.node, path_, "budget", "{samples: 3000000, factor: 3}")) {
      if (part.key == "samples")
        limits.samples = samples_of(part);
      else if (part.key == "factor")
        budget.factor = integer_of(part, 2, 1000);
      else if (part.key == "first")
        budget.first = integer_of(part, 1, 1e15);
      else if (part.key == "within")
        read_within(part);
      else
        refuse_key(part, known);
    }
    if (!limits.samples)
      throw Error(cat(entry.place,
                      "budget has no samples, expected the length of a trial that stays in the search to its end"));
    claim("stop.steps", entry.key_place);
    claim("stop.epochs", entry.key_place);
  }

  // Reads the key whose values have a search each.
  void read_within(const Entry& entry) {
    const std::string key = entry.node.IsScalar() ? entry.node.Scalar() : "";
    const Field* field = find_field(key);
    if (field == nullptr) refuse(entry, "a key of the experiment, such as batch.global");
    if (!is_number(*field)) refuse(entry, "a key whose value is a number, such as batch.global");
    if (!study_->sets(key)) refuse(entry, "a key that the study varies or sets by a rule");
    study_->within = key;
  }

  // If the study sets batch_per_rank but not batch.global, adds the rule batch.global: batch_per_rank * ranks.
  void imply_rule() {
    if (!study_->sets(per_rank_key) || study_->sets("batch.global")) return;
    study_->rules.push_back({"batch.global", Expression::parse("batch_per_rank * ranks", {path_, 1, 1}), true});
  }

  const std::string& yaml_;
  const std::string& path_;
  const std::vector<std::string>& overrides_;
  Study* study_ = nullptr;
  std::optional<BranchTrials> branch_;
  std::map<std::string, std::string> claimed_;  // key -> where it is set
};

}  // namespace

bool Limits::ends_by_count() const {
  return samples || std::ranges::count(settings, "stop.epochs", &Setting::key) > 0;
}

bool Study::sets(std::string_view key) const {
  for (const Axis& axis : axes)
    for (const Choice& choice : axis.choices)
      if (std::ranges::count(choice.settings, key, &Setting::key) > 0) return true;
  return std::ranges::count(draws.keys, key, &DrawnKey::key) > 0 || std::ranges::count(rules, key, &Rule::key) > 0;
}

std::string study_folder(const Study& study) {
  return "results/" + study.name;
}

Study parse_study(const std::string& yaml, const std::string& path, const std::vector<std::string>& overrides) {
  return StudyReader(yaml, path, overrides).read();
}

Study read_study(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_study(read_yaml_text(path, "study"), path, overrides);
}

}  // namespace ringtrain
