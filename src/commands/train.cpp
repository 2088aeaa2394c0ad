// `ringtrain train` does one run on all ranks of the job, from its start to its end.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/table.h"
#include "base/text.h"
#include "bench/benchmarks.h"
#include "checkpoint/resume.h"
#include "checkpoint/run_state.h"
#include "cluster/session.h"
#include "cluster/watchdog.h"
#include "commands/commands.h"
#include "commands/training_loop.h"
#include "config/batch_course.h"
#include "config/experiment.h"
#include "config/reader.h"
#include "run/course.h"
#include "run/energy.h"
#include "run/fixed_order.h"
#include "run/folder.h"
#include "run/machine.h"
#include "run/memory.h"
#include "run/plan_text.h"
#include "run/replay.h"
#include "run/run_record.h"
#include "run/start.h"
#include "study/trial_record.h"

namespace ringtrain {
namespace {

struct TrainingRequest {
  const TrainArguments& arguments;
  const Session& session;        // the job
  const Experiment& experiment;  // the same on all ranks
  std::string resumed_folder;    // on rank 0: the folder to resume; "": run_folder_path() finds it
};

// The code of a run that has paused before its end.
constexpr int training_paused = -1;

// ---- Before the run's folder is written ---------------------------------------------------------------------

struct PlannedRun {
  RunPlan plan;
  std::vector<MemoryItem> memory;          // memory of one rank
  std::optional<std::int64_t> replay_end;  // the step after which the recorded order ends, if the plan has more steps
};

// Returns whether a run with this progress has no steps left.
bool has_ended(const PlannedRun& planned, const RunProgress& progress) {
  return end_of(planned.plan, progress) || (planned.replay_end && progress.position.step >= *planned.replay_end);
}

// Makes the plan on all ranks and completes the position in `from`. Rank 0 throws Error for a checkpoint or a
// recorded order of arrival with which the plan cannot continue. Takes no memory yet. Collective.
PlannedRun agree_on_plan(const TrainingRequest& request, const TrainingData& data, Machine& machine,
                         const MicroBatchChoice& known, ResumePoint& from) {
  const Experiment& experiment = request.experiment;
  PlannedRun planned;
  machine.agree_on_fusions([&] {
    planned.plan = make_run_plan(experiment, data.train, data.validation ? &*data.validation : nullptr,
                                 request.session.size(), *machine.backend, known, from.branch);
    // Rank 0 makes the choices for the other stages of a pipeline, too.
    for (int stage = 1; machine.host->rank() == 0 && stage < planned.plan.stages(); ++stage)
      rank_memory(planned.plan, *machine.backend, stage);
    planned.memory = rank_memory(planned.plan, *machine.backend, machine.host->rank());
  });
  if (from.checkpoint && from.kind == ResumePoint::Kind::source) check_source(*from.checkpoint, planned.plan);
  if (from.checkpoint && from.kind == ResumePoint::Kind::own) check_belongs(*from.checkpoint, from.path, planned.plan);
  // A new epoch begins if the rest of the epoch is too small for this plan's batch.
  from.progress.position = planned.plan.course.settled(from.progress.position);
  if (machine.host->rank() == 0 && !end_of(planned.plan, from.progress))
    planned.replay_end = check_replay(planned.plan, from.progress.position, request.arguments.pause_after);
  planned.replay_end = of_rank_0(*machine.host, planned.replay_end);
  return planned;
}

// ---- Rank 0 opens the folder, prints and writes what comes before step 0 --------------------------------------------

struct StartFacts {
  const TrainingRequest& request;
  const Machine& machine;
  int threads;
  const PlannedRun& planned;
};

RunRecord run_record(const StartFacts& start, std::int64_t resumed_from) {
  return {.plan = start.planned.plan,
          .command_line = start.request.arguments.command_line,
          .hosts = start.request.session.hosts(),
          .launcher = start.request.session.launcher(),
          .threads = start.threads,
          .backend = start.machine.backend->describe(),
          .communicator = start.machine.summing().describe(),
          .resumed_from_step = resumed_from,
          .memory = start.planned.memory};
}

bool made_on_this_machine(const Checkpoint& checkpoint, const StartFacts& start) {
  const RunFacts before = facts_of(checkpoint);
  const bool same_ranks = before.ranks == start.request.session.size();
  return (same_ranks || has_fixed_order(start.planned.plan.experiment)) && before.threads == start.threads &&
         before.machine == start.machine.identity();
}

// Returns the experiment of the last start, which wrote the newest records. Empty if its file is missing.
std::optional<Experiment> experiment_of_last_start(const std::string& run_dir) {
  const std::string path = cat(run_dir, "/", run_experiment_name);
  if (!std::filesystem::exists(path)) return std::nullopt;
  try {
    return read_experiment(path, {});
  } catch (const Error& error) {
    log_warning(error.what(), ": changes of keys since the last start cannot be listed");
    return std::nullopt;
  }
}

bool decide_result(const std::vector<KeyChange>& changes) {
  return std::any_of(changes.begin(), changes.end(), [](const KeyChange& c) { return c.decides_result; });
}

// Prints the step from which the run continues, and what has changed. Returns what happens to the records of later
// steps. They are dropped only if this run computes the same steps again.
LaterRecords describe_resume(const ResumePoint& from, const StartFacts& start, const std::string& run_dir, bool more) {
  const RunPlan& plan = start.planned.plan;
  const std::optional<Experiment> last = experiment_of_last_start(run_dir);
  std::vector<KeyChange> since_last;
  if (last) since_last = changed_keys(*last, plan.experiment);
  if (from.kind != ResumePoint::Kind::own) {
    log_info("no checkpoint in this folder: starting at step ", from.progress.position.step);
    for (const KeyChange& change : since_last) log_info("changed since the last start: ", to_string(change));
    return LaterRecords::keep;
  }
  const std::int64_t step = from.progress.position.step;
  log_info("resuming after step ", step, " from ", from.path);
  if (const std::int64_t lost = last_recorded_step(run_dir) - step; lost > 0)
    log_info(lost, lost == 1 ? " update since that checkpoint was" : " updates since that checkpoint were",
             " lost: the job ended without another one");
  const Experiment before = experiment_of(*from.checkpoint, from.path);
  const std::vector<KeyChange> changes = changed_keys(before, plan.experiment);
  for (const KeyChange& change : changes) log_info("changed since that checkpoint: ", to_string(change));
  for (const KeyChange& change : since_last)
    if (std::find(changes.begin(), changes.end(), change) == changes.end())
      log_info("changed since the last start: ", to_string(change));
  const double invariant_steps = from.progress.scale_invariant_steps;
  if (const std::string rates = changed_rate(before, plan, from.progress.position, invariant_steps);
      more && !rates.empty())
    log_warning("these changes change the learning rate: ", rates);
  if (step > 0 && !made_on_this_machine(*from.checkpoint, start))
    log_info(
        "the checkpoint was made on another machine or number of ranks or threads: it continues within rounding, "
        "not bit for bit");
  // The gradients of several workers may arrive in another order than before.
  const std::string& replay = plan.experiment.parallel.replay;
  const bool repeats = !replay.empty() && last && last->parallel.replay == replay;
  const bool reproducible = !plan.servers || plan.servers->workers == 1 || repeats;
  const bool same_steps = more && reproducible && last && !decide_result(since_last) && !decide_result(changes);
  return same_steps ? LaterRecords::drop : LaterRecords::keep;
}

// Writes experiment.yaml. A different one of an earlier start is kept under another name.
void write_experiment(const std::string& run_dir, const Experiment& experiment, std::int64_t step) {
  const std::string path = cat(run_dir, "/", run_experiment_name), text = to_yaml(experiment);
  const std::string earlier = file_text(path);
  if (earlier == text) return;
  if (!earlier.empty()) {
    const std::string kept = unused_path(cat(run_dir, "/experiment-until-step-", step, ".yaml"));
    write_file_atomically(kept, earlier);
    log_info("the earlier experiment.yaml is kept as ", kept);
  }
  write_file_atomically(path, text);
}

// Returns whether an earlier start has finished the run, with all that is done at its end. This start changes nothing.
bool is_done(const PlannedRun& planned, const RunProgress& progress, const std::string& run_dir) {
  const RunPlan& plan = planned.plan;
  const std::int64_t step = progress.position.step;
  return has_ended(planned, progress) && (!plan.has_validation || progress.evaluated_step == step) &&
         (plan.norm_samples == 0 || progress.norms_step == step) && has_finished(run_dir);
}

LaterRecords open_folder(const std::string& run_dir, const StartFacts& start, const ResumePoint& from, bool recorded) {
  const RunPlan& plan = start.planned.plan;
  const std::int64_t step = from.progress.position.step;
  const bool more = !has_ended(start.planned, from.progress);
  write_info_line(describe_run(plan, start.machine.backend->describe(), start.planned.memory));
  log_info("run folder: ", run_dir);
  for (const std::string& warning : plan_warnings(plan)) log_warning(warning);
  if (from.kind == ResumePoint::Kind::source) {
    log_info("branch of ", describe_branch(plan));
    if (!made_on_this_machine(*from.checkpoint, start))
      log_info("that run trained on another machine or number of ranks or threads: the branch goes on within rounding");
  }
  const LaterRecords later =
      start.request.arguments.resume ? describe_resume(from, start, run_dir, more) : LaterRecords::drop;
  if (recorded) record_start(run_dir, run_record(start, step));
  if (more && start.machine.device) write_choices(run_dir, start.machine.choices());
  return later;
}

// ---- Rank 0 at the end ---------------------------------------------------------------------------------------------

std::string percent(double share) {
  return printed("%.2f %%", 100 * share);
}

std::string tenths(double seconds) {
  return printed("%.1f", seconds);
}

// Returns the name of the signal that this rank has received, or says that the signal came to another rank.
std::string stop_cause() {
  return requested_signal() != 0 ? signal_name(requested_signal()) : "a signal to another rank";
}

RunOutcome outcome_of(const std::string& outcome, const RunProgress& progress, EnergyMeter* energy) {
  RunOutcome o{.outcome = outcome, .progress = progress};
  if (energy != nullptr) o.energy_joules = energy->joules();
  return o;
}

// Called while another error is handled. Errors in this function are ignored, because the other one is reported.
void record_failure(const std::string& run_dir, const std::exception& error, const RunProgress& progress,
                    EnergyMeter* energy) {
  try {
    RunOutcome outcome = outcome_of(cat("error: ", error.what()), progress, energy);
    outcome.thrown_at = thrown_at(error);
    record_end(run_dir, outcome);
  } catch (const std::exception&) {
  }
}

// Returns a text such as "staleness: mean 2.4; updates by staleness: 0: 4, 1: 10, 2: 81, 3: 105".
std::string describe_staleness(const std::map<std::int64_t, std::int64_t>& updates) {
  std::int64_t count = 0, sum = 0;
  std::string text;
  for (const auto& [staleness, n] : updates) {
    count += n;
    sum += staleness * n;
    text += cat(text.empty() ? "" : ", ", staleness, ": ", n);
  }
  return cat("staleness: mean ", tenths(static_cast<double>(sum) / static_cast<double>(count)),
             "; updates by staleness: ", text);
}

void log_summary(const TrainingLoop& run) {
  log_info("steps waited ", percent(run.input_share()), " of their time for input");
  // The median of the last 5 evaluations (Goyal et al. 2017) has less noise than the last one, and unlike the best one
  // it is not biased upwards.
  std::vector<double> accuracies = run.last_accuracies();
  if (accuracies.size() < 5) return;
  std::sort(accuracies.begin(), accuracies.end());
  log_info("median validation accuracy of the last 5 evaluations: ", percent(accuracies[accuracies.size() / 2]));
}

// Returns the command that continues a stopped run.
std::string continuation(const std::string& run_dir) {
  return shell_command({"ringtrain", "train", run_dir, "--resume"});
}

void record_outcome(TrainingLoop& run, int code, const std::string& run_dir, const StopConfig& stop,
                    EnergyMeter* energy, const std::vector<StepTimes>& rank_times,
                    const std::vector<SentBytes>& rank_bytes) {
  const RunProgress& p = run.progress();
  record_stop_cost(run_dir, run.stop_cost());
  const std::string paused = cat("paused after ", p.position.samples, " samples");
  RunOutcome outcome = outcome_of(code == 0                 ? "finished"
                                  : code == training_paused ? paused
                                                            : "stopped by " + stop_cause(),
                                  p, energy);
  if (code == 0) outcome.end = end_word(run.end(), stop);
  outcome.noise = run.noise_summary();
  outcome.staleness = run.staleness();
  outcome.rank_times = rank_times;
  outcome.rank_bytes = rank_bytes;
  record_end(run_dir, outcome);
}

// Prints how the run ended. `why` says why the run ended by itself. It is "" if the run did not end by itself, if it
// has simply done all its steps, or if an earlier start has already recorded the end.
void say_outcome(TrainingLoop& run, int code, const std::string& why, const std::string& run_dir) {
  const RunProgress& p = run.progress();
  if (requested_signal() != 0 && code == exit_checkpointed)
    log_info(stop_cause(), " came ", tenths(seconds_since_signal()), " s ago");
  log_info(code == 0                 ? "finished"
           : code == training_paused ? "paused, with a checkpoint,"
                                     : "stopped on request, with a checkpoint",
           " after step ", p.position.step, " and ", std::llround(p.elapsed_seconds), " s", why.empty() ? "" : ": ",
           why, p.has_best ? cat("; best validation loss ", p.best_loss, " at step ", p.best_step) : std::string());
  log_summary(run);
  if (const auto staleness = run.staleness(); !staleness.empty()) write_info_line(describe_staleness(staleness));
  if (p.dropped > 0) log_info(p.dropped, " gradients came too late and were dropped");
  if (const auto noise = run.noise_summary()) write_info_line(describe(*noise));
  log_info("run folder: ", run_dir);
  if (code == exit_checkpointed) log_info("continue with: ", continuation(run_dir));
}

// Measures the split size of a pipeline if the experiment does not state it. The run's checkpoints keep it. Collective.
std::int64_t measured_split(const Experiment& experiment, const TrainingData& data, Machine& machine,
                            const RankGroup& group) {
  constexpr double seconds = 5;
  const std::vector<PipelineTrial> trials = measure_pipelines(
      experiment, data.train, data.validation ? &*data.validation : nullptr, machine, group, seconds, true);
  const PipelineTrial& best = fastest(trials);
  if (group.rank() == 0)
    log_info("batch.micro is 0: of ", trials.size(), " split sizes ", best.micro_batch, " was the fastest, ",
             std::llround(best.samples_per_second), " samples/s");
  return best.micro_batch;
}

// ---- The phases ----------------------------------------------------------------------------------------------------

class JobTraining {
 public:
  explicit JobTraining(const TrainingRequest& request)
      : request_(request),
        root_(request.session.rank() == 0),
        threads_(thread_count(request.experiment, request.session)),
        watchdog_(request.session.job(), request.experiment.communication.timeout_seconds) {
    machine_.host = make_host_communicator(request.experiment, request.session.job());
  }

  void prepare();
  void open();
  int train();
  void fail(const std::exception& error);

 private:
  const std::string& run_dir() const { return folder_ ? folder_->path() : no_folder_; }

  const TrainingRequest& request_;
  const bool root_;
  const int threads_;
  const std::string no_folder_;
  std::optional<RunFolder> folder_;  // on rank 0
  Watchdog watchdog_;
  Machine machine_;
  ResumePoint from_;
  PlannedRun planned_;
  RunProgress progress_;
  std::unique_ptr<EnergyMeter> energy_;  // on rank 0
  std::unique_ptr<TrainingLoop> run_;
  bool is_recorded_ = false;  // whether this start is in run.json
};

// Reads everything and makes the plan. Rank 0 locks the folder of an earlier run before it reads anything there,
// because a job that has not ended yet may still write.
void JobTraining::prepare() {
  const Experiment& experiment = request_.experiment;
  const TrainingData data = shared_data(experiment, *machine_.host);
  if (root_ && request_.arguments.resume)
    folder_.emplace(request_.resumed_folder.empty() ? run_folder_path(experiment, true) : request_.resumed_folder,
                    true);
  from_ = shared_resume_point(experiment, request_.arguments.resume, run_dir(), *machine_.host, watchdog_);

  complete_machine(machine_, experiment, request_.session.job(), threads_, from_.choices);
  machine_.take_choices(from_.checkpoint ? facts_of(*from_.checkpoint).fusions : "", from_.choices);
  const bool measures = experiment.batch.micro == 0 && from_.micro_batch == 0 && machine_.stages;
  const MicroBatchChoice known =
      measures ? MicroBatchChoice{measured_split(experiment, data, machine_, request_.session.job()),
                                  "the fastest of those that were measured"}
               : micro_batch_of_checkpoint(from_.micro_batch);
  planned_ = agree_on_plan(request_, data, machine_, known, from_);
  progress_ = from_.progress;
  log_job(request_.session.job(), request_.session.launcher(), machine_.gpu);
}

void JobTraining::open() {
  if (root_ && !folder_) folder_.emplace(run_folder_path(request_.experiment, false), false);
  // The energy counters belong to the whole node. They would include the energy of other runs.
  if (root_ && !request_.arguments.shares_node) energy_ = std::make_unique<EnergyMeter>();
  LaterRecords later = LaterRecords::drop;
  const bool recorded = root_ && !is_done(planned_, progress_, run_dir());
  if (root_) later = open_folder(run_dir(), {request_, machine_, threads_, planned_}, from_, recorded);
  is_recorded_ = recorded;
  run_ = std::make_unique<TrainingLoop>(planned_.plan, std::move(from_), run_dir(), machine_, threads_, later,
                                        watchdog_, request_.session.job());
  machine_.host->barrier();  // the run has started when every rank has its memory and weights
  if (!root_) return;
  if (recorded) write_experiment(run_dir(), planned_.plan.experiment, progress_.position.step);
  folder_->become_latest();
}

int JobTraining::train() {
  run_->pause_after(request_.arguments.pause_after);
  if (planned_.replay_end) {
    if (root_)
      log_info("the recorded order of arrival ends after step ", *planned_.replay_end, ": the run stops there");
    run_->stop_after(*planned_.replay_end);
  }
  if (folder_) run_->before_saving([this] { folder_->keep_lock(); });
  int code = run_->run();
  if (code == 0 && run_->paused()) code = training_paused;
  const std::vector<StepTimes> times = run_->rank_times();
  const std::vector<SentBytes> bytes = run_->rank_bytes();
  const StopConfig& stop = request_.experiment.stop;
  if (is_recorded_) record_outcome(*run_, code, run_dir(), stop, energy_.get(), times, bytes);
  if (root_) say_outcome(*run_, code, code == 0 && is_recorded_ ? describe_end(run_->end(), stop) : "", run_dir());
  machine_.host->barrier();
  return code;
}

void JobTraining::fail(const std::exception& error) {
  machine_.communicator().abort(error.what());
  if (machine_.stages) machine_.stages->abort(error.what());
  if (run_) progress_ = run_->progress();
  if (folder_ && !run_ && !request_.arguments.resume) {
    std::error_code ignored;
    std::filesystem::remove_all(run_dir(), ignored);  // so that the next try finds no folder
  } else if (is_recorded_) {
    record_failure(run_dir(), error, progress_, energy_.get());
  }
}

// Returns the exit code, 0 or exit_checkpointed, or training_paused. Collective over the job. The caller ends the job
// after an error.
int train_run(const TrainArguments& arguments, Session& session) {
  std::optional<StartGuard> guard("the ranks did not get the experiment");
  const std::unique_ptr<Communicator> start = make_mpi_communicator(session.job(), 1 << 16);
  RunSource source{arguments.experiment, ""};
  if (session.rank() == 0) source = source_of_run(source.experiment, arguments.resume);
  const Experiment experiment = shared_experiment(source.experiment, *start);
  guard.reset();  // from here on, the watchdog notices hangs
  const TrainingRequest request{arguments, session, experiment, source.folder};
  JobTraining training(request);
  try {
    training.prepare();
    training.open();
    return training.train();
  } catch (const std::exception& error) {
    training.fail(error);
    throw;
  }
}

}  // namespace

int train(const TrainArguments& arguments, Session& session) try {
  using End = TrialReport::End;
  const int code = train_run(arguments, session);
  const End end = code == training_paused ? End::paused : code == 0 ? End::finished : End::stopped;
  if (!arguments.report.empty() && session.rank() == 0) write_report(arguments.report, {end, "", "", ""});
  return code == training_paused ? 0 : code;
} catch (const std::exception& error) {
  if (!arguments.report.empty()) write_report(arguments.report, report_of(error));
  throw;
}

}  // namespace ringtrain
