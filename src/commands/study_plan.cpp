// Plans the trials of a study, and reads their data sets: plan_all() and places_with_data() of study.h.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "backend/cuda/device/libraries.h"
#include "base/error.h"
#include "base/log.h"
#include "base/table.h"
#include "commands/study.h"
#include "run/plan.h"
#include "run/task.h"
#include "study/search.h"

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

namespace {

std::string readable_time(double seconds) {
  if (seconds < 120) return printed("%.3g s", seconds);
  if (seconds < 7200) return printed("%.3g min", seconds / 60);
  return printed("%.3g h", seconds / 3600);
}

std::string described(const Axis& axis) {
  std::vector<std::string> words;
  for (const Choice& choice : axis.choices)
    words.push_back(axis.is_group ? choice.name : choice.settings.front().value);
  return joined(words);
}

void print_study(const Study& study, const Trials& trials) {
  Table t;
  t.section(study.name);
  t.row("experiment", study.experiment);
  for (const Axis& axis : study.axes) t.row(axis.name, described(axis));
  for (const DrawnKey& drawn : study.draws.keys)
    t.row(drawn.key, cat(drawn.range.low, " to ", drawn.range.high, drawn.range.logarithmic ? ", logarithmic" : "",
                         ", drawn ", counted(study.draws.count, "time")));
  if (!study.seeds.empty()) {
    std::vector<std::string> seeds;
    for (const Setting& seed : study.seeds) seeds.push_back(seed.value);
    t.row("seed", joined(seeds));
  }
  for (const Rule& rule : study.rules) t.row(rule.key, cat("= ", rule.expression.text()));
  for (const Comparison& condition : study.conditions) t.row("only where", condition.text());
  const std::size_t twice = trials.choices - trials.left_out - trials.list.size();
  t.row("trials",
        cat(trials.list.size(), trials.list.size() == trials.choices ? "" : cat(" of ", trials.choices, " choices"),
            trials.left_out == 0 ? "" : cat("; ", trials.left_out, " left out by conditions"),
            twice == 0 ? "" : cat("; ", twice, " the same as another, run once")));
  std::printf("%s\n", t.str().c_str());
  if (study.search == Search::halving) std::printf("%s\n", describe_rungs(study, trials).c_str());
}

void print_trials(const std::vector<PlannedTrial>& planned) {
  std::size_t width = 5;
  for (const PlannedTrial& p : planned) width = std::max(width, p.trial->name.size());
  const int w = static_cast<int>(width);
  std::printf("%-*s %6s %10s %12s %10s %10s  batch\n", w, "trial", "ranks", "steps", "samples", "peak rate",
              "expected");
  for (const PlannedTrial& p : planned) {
    const bool counted_steps = p.plan.steps > 0;
    std::printf("%-*s %6lld %10s %12s %10s %10s  %s\n", w, p.trial->name.c_str(),
                static_cast<long long>(p.trial->ranks), counted_steps ? with_thousands(p.plan.steps).c_str() : "-",
                counted_steps ? with_thousands(p.plan.samples).c_str() : "-", with_digits(p.plan.peak_rate, 4).c_str(),
                p.time ? readable_time(p.time->seconds).c_str() : "-", to_string(p.plan.batch).c_str());
    for (const std::string& also : p.trial->also) std::printf("%-*s  = %s\n", w, "", also.c_str());
  }
}

void print_sums(const Study& study, const Trials& trials, const std::vector<PlannedTrial>& planned, bool asked) {
  double rank_seconds = 0, samples = 0;
  std::int64_t most = 1;
  std::size_t known = 0;
  bool from_preflight = false, from_runs = false;
  for (const PlannedTrial& p : planned) {
    most = std::max(most, p.trial->ranks);
    samples += static_cast<double>(p.plan.samples);
    if (!p.time) continue;
    ++known;
    rank_seconds += p.time->seconds * static_cast<double>(p.trial->ranks);
    (p.time->from == "preflight" ? from_preflight : from_runs) = true;
  }
  if (study.search == Search::halving && samples > 0) {  // most trials end before the samples of their plan
    const double searched = samples_of_searches(study, trials);
    rank_seconds *= searched / samples;
    samples = searched;
  }
  Table t;
  t.section("together");
  t.row("samples", with_thousands(std::llround(samples)));
  if (known == 0) {
    t.row("expected time",
          cat("not known: no run of this study has been measured",
              asked ? ", and the preflight file is of other models or ranks, or the trials are no rings" : "",
              asked ? "" : "; --preflight FILE takes what ringtrain bench step --json has written"));
  } else {
    t.row("expected time",
          cat(readable_time(rank_seconds), " x ranks, so ", readable_time(rank_seconds / static_cast<double>(most)),
              " at least on ", most, most == 1 ? " rank" : " ranks",
              known < planned.size()
                  ? cat("; without ", counted(planned.size() - known, "trial"), " that nothing is known of")
                  : ""));
    t.row("from",
          cat(from_runs ? "earlier trials in " + study_folder(study) : "", from_runs && from_preflight ? "; " : "",
              from_preflight ? "the preflight file, without evaluations and checkpoints" : ""));
  }
  std::printf("\n%s", t.str().c_str());
}

}  // namespace

int plan_study(const StudyArguments& arguments) {
  const Study study = read_study(arguments.study.path, arguments.study.overrides);
  const std::vector<Preflight> preflight = read_preflights(arguments.preflight);
  const Trials trials = make_trials(study);
  const std::vector<std::size_t> taken = taken_places(study, trials, arguments);
  if (study.search == Search::halving) searches_of(study, trials);  // checks the rungs; throws Error
  TrialPlanner planner = make_planner(trials, arguments.threads, arguments.device);
  const std::vector<std::size_t> ready = places_with_data(
      study, trials, taken, [&](const Experiment& experiment, const std::string& prefix, std::int64_t samples) {
        planner.give(planned_index(experiment, prefix, samples));
      });
  std::vector<PlannedTrial> planned = plan_all(study, trials, ready, planner);
  const TimeExpectation times(measured_runs(study_folder(study), !arguments.device.empty()), preflight);
  for (PlannedTrial& p : planned) p.time = times.of(*p.trial, p.plan);

  print_study(study, trials);
  if (arguments.shares > 0)
    std::printf("share %lld of %lld: %s\n\n", static_cast<long long>(arguments.share),
                static_cast<long long>(arguments.shares), counted(taken.size(), "trial").c_str());
  print_trials(planned);
  print_sums(study, trials, planned, !preflight.empty());
  return 0;
}

}  // namespace ringtrain
