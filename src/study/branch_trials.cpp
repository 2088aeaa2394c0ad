#include "study/branch_trials.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "checkpoint/find_checkpoint.h"
#include "config/batch_course.h"
#include "config/yaml_document.h"
#include "run/folder.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* branch_example = "{from: results/names/parent, at: [1, 2], batch: [x1, x2, x4], samples: 100000}";
constexpr std::string_view branch_keys[] = {"from", "at", "batch", "samples", "rate"};

// Reads "x4" or "4".
std::optional<double> factor_of(std::string_view text) {
  if (text.starts_with('x')) text.remove_prefix(1);
  double value = 0;
  if (!read_number(text, value) || !(value > 0 && value <= 1e6)) return std::nullopt;
  return value;
}

// Returns batch x factor as text. A product that is not a whole number stays a fraction, which is refused later
// together with its key.
std::string whole_text(std::int64_t batch, double factor) {
  const double value = static_cast<double>(batch) * factor;
  return shortest(std::abs(value - std::round(value)) < 1e-6 ? std::round(value) : value);
}

// Returns the items of a list, or a single value as a list of one.
std::vector<Entry> items(const Entry& entry, const std::string& path) {
  if (!entry.node.IsSequence()) return {entry};
  std::vector<Entry> list;
  for (const YAML::Node& item : entry.node)
    list.push_back({entry.key, item, entry.key_place, yaml_place(path, item.Mark())});
  return list;
}

}  // namespace

BranchTrials::BranchTrials(const Entry& branch, const std::string& path) : path_(path), place_(branch.place) {
  std::map<std::string, Entry> given;
  for (const Entry& part : entries(branch.node, path, "branch", branch_example)) {
    if (std::ranges::count(branch_keys, std::string_view(part.key)) == 0) refuse_key(part, branch_keys);
    given.emplace(part.key, part);
  }
  for (const char* key : {"from", "at", "batch", "samples"})
    if (!given.contains(key))
      throw Error(cat(branch.place, "branch has no ", key, ", expected from, at, batch and samples"),
                  cat("branch: ", branch_example));
  read_run(given.at("from"));
  read_points(given.at("at"));
  read_batches(given.at("batch"));
  samples_ = {"branch.samples", std::to_string(integer_of(given.at("samples"), 1, 1e15)), given.at("samples").place};
  if (given.contains("rate")) rate_ = word_of(given.at("rate"), {"sqrt", "linear"});
}

// Looks for the run in the folder of the study file, and then in the working directory.
void BranchTrials::read_run(const Entry& entry) {
  const std::string given =
      entry.node.IsScalar() ? expand_path(entry.node.Scalar(), cat(entry.place, "branch.from")) : "";
  if (given.empty()) refuse(entry, "the folder of a run, as results/names/parent");
  const std::string beside = (fs::path(path_).parent_path() / given).lexically_normal().string();
  std::error_code too_long;  // a path that is too long counts as missing
  run_ = fs::is_directory(beside, too_long) ? beside : given;
  while (run_.size() > 1 && run_.back() == '/') run_.pop_back();
  is_there_ = fs::exists(experiment(), too_long);
  run_place_ = entry.place;
}

void BranchTrials::read_points(const Entry& entry) {
  for (const Entry& item : items(entry, path_)) {
    const auto point =
        item.node.IsScalar() && item.node.Tag() != "!" ? parse_run_point(item.node.Scalar()) : std::nullopt;
    if (!point) refuse(item, std::string(expected_run_point));
    if (std::ranges::count(points_, *point, &Point::point) > 0) refuse(item, "each point once");
    points_.push_back({*point, item});
  }
  if (points_.empty()) throw Error(cat(entry.place, "at is an empty list, expected points such as [1, 500 steps]"));
}

void BranchTrials::read_batches(const Entry& entry) {
  for (const Entry& item : items(entry, path_)) {
    const auto factor = item.node.IsScalar() && item.node.Tag() != "!" ? factor_of(item.node.Scalar()) : std::nullopt;
    if (!factor) refuse(item, "multiples of the run's batch such as [x1, x2, x4]");
    if (std::ranges::count(factors_, *factor, &std::pair<std::string, double>::second) > 0)
      refuse(item, "each multiple once");
    factors_.emplace_back("x" + shortest(*factor), *factor);
  }
  if (factors_.empty()) throw Error(cat(entry.place, "batch is an empty list, expected multiples such as [x1, x2]"));
}

std::string BranchTrials::experiment() const {
  return cat(run_, "/", run_experiment_name);
}

void BranchTrials::expect_run() const {
  if (is_there_) return;
  std::error_code too_long;
  throw Error(
      cat(run_place_, "there is no run in ", cut_to(run_, 1000),
          fs::is_directory(run_, too_long) ? ": it has no experiment.yaml" : "",
          ", expected a run's folder, or the key experiment"),
      "The program looks for the run in the folder of the study file, and then in the working directory. Train the run "
      "first, with checkpoint.keep_at.");
}

std::vector<std::string> BranchTrials::overrides() const {
  return {"run.dir=", "run.id=", "checkpoint.keep_at=[]"};
}

Axis BranchTrials::axis(const Experiment& experiment) const {
  const std::string& kind = experiment.optimizer.kind;
  const bool linear = rate_.empty() ? kind == "sgd" || kind == "lars" : rate_ == "linear";
  Axis axis{"at", true, {}};
  for (const Point& at : points_) {
    try {
      if (is_there_) checkpoint_at(run_, at.point);
    } catch (const Error& e) {
      throw Error(at.entry.place + e.what(), e.hint(), e.where());
    }
    for (const auto& [name, factor] : factors_) {
      Choice choice{cat(compact_text(at.point), "_", name), {}};
      const auto set = [&](const char* key, const std::string& value) {
        choice.settings.push_back({key, value, key == std::string("branch.from") ? at.entry.place : place_});
      };
      set("branch.from", cat(run_, "@", compact_text(at.point)));
      set("batch.global", whole_text(experiment.batch.global, factor));
      if (experiment.batch.largest > 0) set("batch.largest", whole_text(experiment.batch.largest, factor));
      set("branch.batch_factor", shortest(factor * experiment.branch.batch_factor));
      set("branch.rate_factor", shortest((linear ? factor : std::sqrt(factor)) * experiment.branch.rate_factor));
      choice.settings.push_back(samples_);
      axis.choices.push_back(std::move(choice));
    }
  }
  return axis;
}

}  // namespace ringtrain
