#include "commands/planned_trials.h"

#include <algorithm>
#include <map>

#include "backend/cuda/device/device.h"
#include "base/error.h"
#include "base/log.h"
#include "base/table.h"

namespace ringtrain {

std::vector<std::size_t> taken_places(const Study& study, const Trials& trials, const StudyArguments& arguments) {
  if (arguments.shares > 0 && study.search == Search::halving)
    throw Error(cat("--index with search: halving in ", study.path, ": trials that are compared must be in one job"),
                "leave out --index");
  return arguments.shares > 0 ? share_of(trials, arguments.share, arguments.shares) : share_of(trials, 1, 1);
}

std::vector<std::size_t> places_with_data(const Study& study, const Trials& trials,
                                          const std::vector<std::size_t>& places, const ReadDataSet& read) {
  std::map<std::string, bool> known;  // prefix -> whether the data set can be read
  std::vector<std::size_t> ready;
  std::optional<Error> first;
  for (const std::size_t place : places) {
    const Trial& trial = trials.list[place];
    const DataConfig& data = trial.experiment.data;
    const auto can_read = [&](const std::string& prefix, std::int64_t samples) {
      if (prefix.empty() || known.contains(prefix)) return prefix.empty() || known[prefix];
      try {
        read(trial.experiment, prefix, samples);
        return known[prefix] = true;
      } catch (const Error& e) {
        log_warning("trials of ", prefix, " will fail: ", e.what());
        if (!first) first.emplace(cat(study.path, ": trial ", trial.name, ": ", e.what()), e.hint(), e.where());
        return known[prefix] = false;
      }
    };
    if (can_read(data.train, data.train_samples) && can_read(data.validation, data.validation_samples))
      ready.push_back(place);
  }
  if (ready.empty() && first) throw *first;
  return ready;
}

TrialPlanner make_planner(const Trials& trials, int threads, const std::string& device) {
  const auto may_use_gpus = [](const Trial& trial) { return trial.experiment.machine.device != "cpu"; };
  const bool has_gpus =
      device.empty() && std::ranges::any_of(trials.list, may_use_gpus) && !cuda::visible_uuids().empty();
  return TrialPlanner(threads, device, has_gpus);
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
