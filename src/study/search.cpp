#include "study/search.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/table.h"

namespace ringtrain {
std::vector<std::string> points_of(const Trials& trials) {
  std::vector<std::string> points;
  std::set<std::string> seen;
  for (const Trial& trial : trials.list)
    if (seen.insert(trial.point).second) points.push_back(trial.point);
  return points;
}

std::vector<Rung> rungs_of(const Study& study, const Trials& trials) {
  if (study.budget.samples == 0)
    throw Error(cat(study.path, ": search: halving without a budget, expected budget: {samples: ...}"),
                "budget.samples is the length of a trial that stays in the search to its end; factor (3) and first are "
                "optional.");
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
  return halving_rungs(std::ssize(points_of(trials)), study.budget);
}

double samples_of_search(const Study& study, const Trials& trials) {
  return samples_of(rungs_of(study, trials)) * static_cast<double>(std::max<std::size_t>(1, study.seeds.size()));
}

std::string search_json(const Study& study, const Trials& trials) {
  const auto seeds = static_cast<std::int64_t>(std::max<std::size_t>(1, study.seeds.size()));
  nlohmann::ordered_json search = {
      {"kind", "halving"}, {"factor", study.budget.factor}, {"rungs", nlohmann::json::array()}};
  std::size_t number = 0;
  for (const Rung& rung : rungs_of(study, trials))
    search["rungs"].push_back({{"rung", ++number}, {"samples", rung.samples}, {"trials", rung.points * seeds}});
  return search.dump();
}

std::string describe_rungs(const Study& study, const Trials& trials) {
  const std::vector<Rung> rungs = rungs_of(study, trials);
  const auto seeds = static_cast<std::int64_t>(std::max<std::size_t>(1, study.seeds.size()));
  Table t;
  t.section("search: halving");
  std::int64_t before = 0;
  for (std::size_t i = 0; i < rungs.size(); ++i) {
    const Rung& rung = rungs[i];
    t.row(cat("rung ", i + 1), cat(counted(rung.points, "point"), seeds > 1 ? cat(" x ", seeds, " seeds") : "", " to ",
                                   with_thousands(rung.samples), " samples",
                                   before > 0 ? cat(", ", with_thousands(rung.samples - before), " more") : "",
                                   i + 1 < rungs.size() ? cat("; the best ", rungs[i + 1].points,
                                                              rungs[i + 1].points == 1 ? " goes" : " go", " on")
                                                        : ""));
    before = rung.samples;
  }
  const double all = static_cast<double>(rungs.front().points) * static_cast<double>(rungs.back().samples);
  const double halving = samples_of(rungs), times = static_cast<double>(seeds);
  t.row("together", cat(with_thousands(std::llround(samples_of_search(study, trials))), " samples, ",
                        with_digits(100 * halving / all, 3), " % of the ", with_thousands(std::llround(all * times)),
                        " of all points to their end"));
  return t.str();
}

}  // namespace ringtrain
