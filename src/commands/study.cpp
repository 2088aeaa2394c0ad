// `ringtrain study` begins a job that works on a study: it reads and checks everything, and then starts the trials.
#include "commands/study.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "base/error.h"
#include "base/log.h"
#include "base/machine_share.h"
#include "base/signals.h"
#include "base/table.h"
#include "base/version.h"
#include "checkpoint/find_checkpoint.h"
#include "cluster/launcher.h"
#include "config/experiment.h"
#include "config/schema_text.h"
#include "config/yaml_document.h"
#include "study/search_course.h"

namespace ringtrain {
namespace {

void check_ranks(const std::vector<PlannedTrial>& planned, const StudyWork& work, int ranks) {
  for (std::size_t i = 0; i < planned.size(); ++i) {
    const Trial& trial = *planned[i].trial;
    if (trial.ranks <= ranks || work.trials[work.queue[i].place].is_over()) continue;
    throw Error(
        cat("trial ", trial.name, " needs ", trial.ranks, " ranks, and this study has ", ranks),
        cat("give it more: ", slurm_job().in_slurm() ? "ask Slurm for more tasks" : cat("--ranks ", trial.ranks),
            ", or change ranks_per_trial"));
  }
}

// The ranks of a trial are an MPI job of their own, which a rank of another job cannot start.
void check_single_process() {
  const std::string launcher = launcher_name();
  if (launcher == "none") return;
  throw Error(cat("this study was started by ", launcher, ", but it starts the ranks of its trials itself"),
              launcher.starts_with("srun")
                  ? "start it as one process in the job's script: ringtrain study FILE uses the tasks of the job"
                  : cat("start it as one process: ringtrain study FILE --ranks ", launched_tasks()));
}

// Returns the expected seconds of each trial. Unknown times are estimated in proportion to samples x parameters /
// ranks. If no time is known, `knows_seconds` becomes false, and the results are only in proportion to the times. A
// trial without a count of steps counts as the longest, or as long as its stop.seconds.
std::vector<double> expected_seconds(const std::vector<PlannedTrial>& planned, bool& knows_seconds) {
  const auto size = [](const PlannedTrial& p) {
    return static_cast<double>(p.plan.samples) * static_cast<double>(p.plan.parameters);
  };
  double rank_seconds = 0, sizes = 0;
  for (const PlannedTrial& p : planned)
    if (p.time) {
      rank_seconds += p.time->seconds * static_cast<double>(p.trial->ranks);
      sizes += size(p);
    }
  knows_seconds = sizes > 0;
  const double unit = knows_seconds ? rank_seconds / sizes : 1;
  std::vector<double> expected;
  for (const PlannedTrial& p : planned) {
    double own = p.time ? p.time->seconds : unit * size(p) / static_cast<double>(p.trial->ranks);
    if (const double limit = p.trial->experiment.stop.seconds; limit > 0 && knows_seconds)
      own = own > 0 ? std::min(own, limit) : limit;
    expected.push_back(own);
  }
  const double most = expected.empty() ? 0 : std::ranges::max(expected);
  for (double& own : expected)
    if (own == 0) own = most;
  return expected;
}

std::vector<TrialRecord> records_of(const Trials& trials) {
  std::vector<TrialRecord> records;
  for (const Trial& trial : trials.list) {
    TrialRecord record;
    record.name = trial.name;
    record.also = trial.also;
    record.overrides = overrides_to_json(trial.overrides, trial.experiment);
    record.ranks = trial.ranks;
    record.seed = trial.experiment.seed;
    records.push_back(std::move(record));
  }
  return records;
}

// Returns the trials in the order of `taken`. Those of `ready`, a part of `taken` in the same order, are planned.
std::vector<PlannedTrial> plan_ready(const Study& study, const Trials& trials, const std::vector<std::size_t>& taken,
                                     const std::vector<std::size_t>& ready, TrialPlanner& planner) {
  const std::vector<PlannedTrial> planned = plan_all(study, trials, ready, planner);
  std::vector<PlannedTrial> all;
  auto next = planned.begin();
  for (const std::size_t place : taken) {
    const Trial& trial = trials.list[place];
    const bool is_ready = next != planned.end() && next->trial == &trial;
    all.push_back(is_ready ? *next++ : PlannedTrial{&trial, {}, std::nullopt});
  }
  return all;
}

std::string name_of_job() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return cat(host_name(), "-", ::getpid(), "-", now.tv_sec, "-", now.tv_nsec / 1000);
}

struct Prepared {
  StudyWork work;
  TrialLauncher launcher;
};

// Prepares the work of the job, and the ranks that do it.
Prepared prepare(const StudyArguments& arguments) {
  const Study study = read_study(arguments.study.path, arguments.study.overrides);
  const std::vector<Preflight> preflight = read_preflights(arguments.preflight);
  const Trials trials = make_trials(study);
  const std::vector<std::size_t> taken = taken_places(study, trials, arguments);

  StudyWork work;
  work.folder = study_folder(study);
  work.job = name_of_job();
  work.facts = {study.name, study.experiment, study.path, read_yaml_text(study.path, "study"), build_commit()};
  if (study.search == Search::halving) {
    work.searches = searches_of(study, trials);
    work.facts.search = search_json(study, trials);
    SearchCourses(work.searches, work.folder);  // throws if the folder has the rungs of another search
  }
  work.trials = records_of(trials);
  check_folder(work.folder, arguments.resume);
  for (const std::size_t place : taken) check_same_result(work.folder, trials.list[place]);
  for (TrialRecord& record : work.trials) read_trial_record(cat(work.folder, "/", record.name), record);
  for (const std::size_t place : taken) {
    const Experiment& e = trials.list[place].experiment;
    if (is_branch(e) && !work.trials[place].is_over()) source_checkpoint(e.branch.from);  // throws if it is missing
  }

  const bool uses_gpus = std::ranges::any_of(
      taken, [&](std::size_t place) { return trials.list[place].experiment.machine.device != "cpu"; });
  TrialLauncher launcher(arguments.launcher, arguments.ranks, uses_gpus);
  TrialPlanner planner = make_planner(trials, launcher.threads(), arguments.device);
  // Finished trials need no data. Trials whose data cannot be read fail, but do not disturb the others.
  std::vector<std::size_t> unfinished;
  std::ranges::copy_if(taken, std::back_inserter(unfinished),
                       [&](std::size_t place) { return !work.trials[place].is_over(); });
  const auto read = [&](const Experiment&, const std::string& prefix, std::int64_t) {
    planner.give(read_dataset_index(prefix));
  };
  const std::vector<std::size_t> ready = places_with_data(study, trials, unfinished, read);
  std::vector<PlannedTrial> planned = plan_ready(study, trials, taken, ready, planner);
  const TimeExpectation times(measured_runs(work.folder), preflight);
  for (PlannedTrial& p : planned)
    if (p.plan.batch.ranks > 0) p.time = times.of(*p.trial, p.plan);
  const std::vector<double> expected = expected_seconds(planned, work.knows_seconds);
  for (std::size_t i = 0; i < taken.size(); ++i)
    work.queue.push_back({taken[i], to_yaml(experiment_in(work.folder, *planned[i].trial)), expected[i]});
  check_ranks(planned, work, launcher.slots().count());
  std::ranges::stable_sort(work.queue, std::ranges::greater(),
                           [&](const QueuedTrial& q) { return std::pair(work.trials[q.place].ranks, q.seconds); });
  std::error_code code;
  std::filesystem::create_directories(work.folder, code);
  if (code)
    throw Error(
        cat(work.folder, ": cannot make the study's folder: ", code.message()),
        "results/ is made in the working directory: start the study where a folder of that name can be written to");
  return {std::move(work), std::move(launcher)};
}

}  // namespace

int study(const StudyArguments& arguments) {
  check_single_process();
  catch_signals();
  Prepared prepared = prepare(arguments);
  if (const SlurmJob job = slurm_job(); job.in_slurm()) log_info(describe(job, "none"));
  log_info("study ", prepared.work.facts.name, ": ", prepared.work.queue.size(), " of ", prepared.work.trials.size(),
           " trials on ", counted(prepared.launcher.slots().count(), "rank"), ", ", prepared.work.folder);
  return run_study(std::move(prepared.work), std::move(prepared.launcher), arguments.command_line);
}

}  // namespace ringtrain
