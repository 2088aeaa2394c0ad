#include "study/search.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/json.h"
#include "base/rounding.h"
#include "base/table.h"
#include "config/schema.h"
#include "config/schema_text.h"

namespace ringtrain {
namespace {

// Returns ceil(samples / factor^times).
std::int64_t divided(std::int64_t samples, std::int64_t factor, std::size_t times) {
  for (std::size_t i = 0; i < times; ++i) samples = divide_up(samples, factor);
  return samples;
}

}  // namespace

std::vector<Rung> halving_rungs(std::int64_t points, const HalvingBudget& budget) {
  // floor(points / factor^i) for i = 0, 1, ..., at least 1. Repeated integer division gives the same numbers.
  std::vector<std::int64_t> counts;
  for (std::int64_t n = points; n >= 1; n /= budget.factor) counts.push_back(n);
  std::vector<Rung> rungs;
  if (budget.first == 0) {
    for (std::size_t i = 0; i < counts.size(); ++i)
      rungs.push_back({counts[i], divided(budget.samples, budget.factor, counts.size() - 1 - i)});
    return rungs;
  }
  std::int64_t samples = budget.first;
  for (std::size_t i = 0;; ++i, samples *= budget.factor) {
    const std::int64_t count = i < counts.size() ? counts[i] : 1;
    const bool last = samples >= budget.samples || count == 1;
    rungs.push_back({count, last ? budget.samples : samples});
    if (last) return rungs;
  }
}

double samples_of(const std::vector<Rung>& rungs, std::int64_t batch) {
  double sum = 0;
  std::int64_t before = 0;
  for (const Rung& rung : rungs) {
    const std::int64_t end = round_up(rung.samples, batch);
    sum += static_cast<double>(rung.points) * static_cast<double>(end - before);
    before = end;
  }
  return sum;
}

std::vector<std::string> promoted(std::vector<RungLoss> losses, std::int64_t count) {
  std::erase_if(losses, [](const RungLoss& l) { return !std::isfinite(l.loss); });
  std::ranges::sort(losses, {}, [](const RungLoss& l) { return std::tuple(-l.reached, l.loss, l.point); });
  if (std::ssize(losses) > count) losses.resize(static_cast<std::size_t>(std::max<std::int64_t>(0, count)));
  std::vector<std::string> names;
  for (const RungLoss& l : losses) names.push_back(l.point);
  return names;
}

namespace {

std::int64_t seeds_of(const Study& study) {
  return static_cast<std::int64_t>(std::max<std::size_t>(1, study.seeds.size()));
}

void check_trials(const Study& study, const Trials& trials) {
  if (!study.budget)
    throw Error(cat(study.path, ": search: halving without a budget, expected budget: {samples: ...}"),
                "budget.samples is the length of a trial that stays in the search to its end; factor (3), first and "
                "within are optional.");
  for (const Trial& trial : trials.list)
    if (trial.experiment.data.validation.empty())
      throw Error(
          cat(study.path, ": search: halving, but trial ", trial.name,
              " has no data.validation, expected validation data: the validation loss decides which trials go on"));
  for (const Trial& trial : trials.list)
    if (trial.ranks != trials.list.front().ranks)
      throw Error(cat(study.path, ": search: halving over trials of ", trials.list.front().ranks, " and ", trial.ranks,
                      " ranks, expected one number of ranks for all: the number of ranks does not change the loss"),
                  "choose search: all to compare numbers of ranks");
}

std::vector<Rung> rungs_of(const Study& study, const Trials& trials, const TrialSearch& search) {
  const Trial& first = trials.list[search.places.front()];
  const std::string where = study.limits.samples->place().prefix();
  for (const std::size_t place : search.places)
    if (const Trial& trial = trials.list[place]; trial.samples != first.samples)
      throw Error(
          cat(study.path, ": budget.samples is ", first.samples, " for trial ", first.name, " and ", trial.samples,
              " for trial ", trial.name, ", expected one number for trials that are compared"),
          "budget: {within: KEY} compares only trials with the same value of the key that the samples depend on");
  HalvingBudget budget = *study.budget;
  budget.samples = first.samples;
  if (budget.first >= budget.samples)
    throw Error(cat(where, "budget.first is ", budget.first, " and budget.samples ", budget.samples, " for trial ",
                    first.name, ", expected less in the first rung"));
  const std::set<std::string> points(search.points.begin(), search.points.end());
  return halving_rungs(std::ssize(points), budget);
}

Json rungs_json(const TrialSearch& search, std::int64_t seeds) {
  Json json = Json::array();
  std::size_t number = 0;
  for (const Rung& rung : search.rungs)
    json.push_back({{"rung", ++number}, {"samples", rung.samples}, {"trials", rung.points * seeds}});
  return json;
}

}  // namespace

std::vector<TrialSearch> searches_of(const Study& study, const Trials& trials) {
  check_trials(study, trials);
  const Field* key = study.within.empty() ? nullptr : find_field(study.within);
  std::vector<TrialSearch> searches;
  for (std::size_t place = 0; place < trials.list.size(); ++place) {
    const Trial& trial = trials.list[place];
    const std::string value = key != nullptr ? value_text(*key, trial.experiment) : "";
    auto search = std::ranges::find(searches, value, &TrialSearch::value);
    if (search == searches.end()) {
      search = searches.emplace(searches.end());
      search->value = value;
      if (key != nullptr) search->name = cat(leaf_of(key->key), "-", value);
    }
    search->places.push_back(place);
    search->points.push_back(trial.point);
  }
  for (TrialSearch& search : searches) search.rungs = rungs_of(study, trials, search);
  return searches;
}

double samples_of_searches(const Study& study, const Trials& trials) {
  double sum = 0;
  for (const TrialSearch& search : searches_of(study, trials)) {
    double of_points = 0;  // nobody knows which batches go on, so this is the mean over all of them
    for (const std::size_t place : search.places)
      of_points += samples_of(search.rungs, trials.list[place].experiment.batch.global);
    sum += of_points / static_cast<double>(search.places.size());
  }
  return sum * static_cast<double>(seeds_of(study));
}

std::string search_json(const Study& study, const Trials& trials) {
  const std::vector<TrialSearch> searches = searches_of(study, trials);
  Json json = {{"kind", "halving"}, {"factor", study.budget->factor}};
  if (study.within.empty()) {
    json["rungs"] = rungs_json(searches.front(), seeds_of(study));
    return json.dump();
  }
  json["within"] = study.within;
  json["searches"] = Json::array();
  for (const TrialSearch& search : searches) {
    std::vector<std::string> names;
    for (const std::size_t place : search.places) names.push_back(trials.list[place].name);
    json["searches"].push_back(
        {{"value", search.value}, {"names", names}, {"rungs", rungs_json(search, seeds_of(study))}});
  }
  return json.dump();
}

std::string describe_rungs(const Study& study, const Trials& trials) {
  const std::int64_t seeds = seeds_of(study);
  Table t;
  double all = 0;
  for (const TrialSearch& search : searches_of(study, trials)) {
    const std::vector<Rung>& rungs = search.rungs;
    t.section(search.value.empty() ? "search: halving" : cat("search: halving, ", study.within, "=", search.value));
    std::int64_t before = 0;
    for (std::size_t i = 0; i < rungs.size(); ++i) {
      const Rung& rung = rungs[i];
      t.row(cat("rung ", i + 1), cat(counted(rung.points, "point"), seeds > 1 ? cat(" x ", seeds, " seeds") : "",
                                     " to ", with_thousands(rung.samples), " samples",
                                     before > 0 ? cat(", ", with_thousands(rung.samples - before), " more") : "",
                                     i + 1 < rungs.size() ? cat("; the best ", rungs[i + 1].points,
                                                                rungs[i + 1].points == 1 ? " goes" : " go", " on")
                                                          : ""));
      before = rung.samples;
    }
    for (const std::size_t place : search.places)
      all += static_cast<double>(round_up(rungs.back().samples, trials.list[place].experiment.batch.global));
  }
  const double halving = samples_of_searches(study, trials);
  t.row("together", cat(with_thousands(std::llround(halving)), " samples, ", with_digits(100 * halving / all, 3),
                        " % of the ", with_thousands(std::llround(all)), " of all points to their end"));
  return t.str();
}

}  // namespace ringtrain
