#include "commands/planned_trials.h"

#include <algorithm>

#include "base/error.h"
#include "base/table.h"

namespace ringtrain {

std::vector<std::size_t> taken_places(const Study& study, const Trials& trials, const StudyArguments& arguments) {
  if (arguments.shares > 0 && study.search == Search::halving)
    throw Error(cat("--index with search: halving in ", study.path, ": trials that are compared must be in one job"),
                "leave out --index");
  return arguments.shares > 0 ? share_of(trials, arguments.share, arguments.shares) : share_of(trials, 1, 1);
}

std::vector<PlannedTrial> plan_all(const Study& study, const Trials& trials, const std::vector<std::size_t>& places,
                                   TrialPlanner& planner) {
  constexpr std::ptrdiff_t most_named = 4;
  std::vector<PlannedTrial> planned;
  std::vector<std::string> failed;
  std::optional<Error> first;
  for (const std::size_t place : places) try {
      planned.push_back({&trials.list[place], planner.plan(trials.list[place]), std::nullopt});
    } catch (const Error& e) {
      failed.push_back(trials.list[place].name);
      if (!first) first = e;
    }
  if (!first) return planned;
  const std::ptrdiff_t more = std::ssize(failed) - 1;
  std::string others;
  if (more > 0)
    others = cat(" (and ", counted(more, "more trial"), ": ",
                 joined({failed.begin() + 1, failed.begin() + 1 + std::min(more, most_named)}),
                 more > most_named ? ", ..." : "", ")");
  throw Error(cat(study.path, ": trial ", failed[0], ": ", first->what(), others), first->hint(), first->where());
}

}  // namespace ringtrain
