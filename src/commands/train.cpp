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
#include "base/output_file.h"
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
#include "config/schema_text.h"
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

// A run on all ranks, in three phases. A phase uses what the phases before it have left in the members.
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
  void agree_on_plan(const TrainingData& data, const MicroBatchChoice& known);
  bool has_ended() const;
  bool is_done() const;
  bool continues_bit_for_bit() const;
  bool computes_same_steps(const Experiment& last_start) const;
  LaterRecords describe_start() const;
  LaterRecords describe_resume() const;
  RunRecord start_record() const;
  void record_outcome(int code, const std::vector<StepTimes>& rank_times, const std::vector<SentBytes>& rank_bytes);
  void say_outcome(int code);

  const TrainingRequest& request_;
  const bool root_;
  const int threads_;
  const std::string no_folder_;
  std::optional<RunFolder> folder_;  // on rank 0
  Watchdog watchdog_;
  Machine machine_;
  ResumePoint from_;  // given to run_ by open()
  RunPlan plan_;
  std::vector<MemoryItem> memory_;          // memory of one rank
  std::optional<std::int64_t> replay_end_;  // the step after which the recorded order ends, if the plan has more steps
  RunProgress progress_;                    // where this start begins
  std::unique_ptr<EnergyMeter> energy_;     // on rank 0
  std::unique_ptr<TrainingLoop> run_;
  bool is_recorded_ = false;  // whether this start is in run.json
};

// ---- prepare(): before the run's folder is written -----------------------------------------------------------------

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

// Makes the plan on all ranks and completes the position in `from_`. Rank 0 throws Error for a checkpoint or a recorded
// order of arrival with which the plan cannot continue. Takes no memory yet. Collective.
void JobTraining::agree_on_plan(const TrainingData& data, const MicroBatchChoice& known) {
  const int rank = machine_.host->rank();
  machine_.agree_on_fusions([&] {
    plan_ = make_run_plan(request_.experiment, data.train, data.validation ? &*data.validation : nullptr,
                          request_.session.size(), *machine_.backend, known, from_.branch);
    // Rank 0 makes the choices for the other stages of a pipeline, too.
    for (int stage = 1; rank == 0 && stage < plan_.stages(); ++stage) rank_memory(plan_, *machine_.backend, stage);
    memory_ = rank_memory(plan_, *machine_.backend, rank);
  });
  if (from_.checkpoint && from_.kind == ResumePoint::Kind::source) check_source(*from_.checkpoint, plan_);
  if (from_.checkpoint && from_.kind == ResumePoint::Kind::own) check_belongs(*from_.checkpoint, from_.path, plan_);
  // A new epoch begins if the rest of the epoch is too small for this plan's batch.
  from_.progress.position = plan_.course.settled(from_.progress.position);
  progress_ = from_.progress;
  if (rank == 0 && !end_of(plan_, progress_))
    replay_end_ = check_replay(plan_, progress_.position, request_.arguments.pause_after);
  replay_end_ = of_rank_0(*machine_.host, replay_end_);
}

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
  agree_on_plan(data, known);
  log_job(request_.session.job(), request_.session.launcher(), machine_.gpu);
}

// ---- open(): rank 0 opens the folder, prints and writes what comes before step 0 ------------------------------------

// Returns whether the run has no steps left.
bool JobTraining::has_ended() const {
  return end_of(plan_, progress_) || (replay_end_ && progress_.position.step >= *replay_end_);
}

// Returns whether an earlier start has finished the run, with all that is done at its end. This start changes nothing.
bool JobTraining::is_done() const {
  const std::int64_t step = progress_.position.step;
  return has_ended() && (!plan_.has_validation || progress_.evaluated_step == step) &&
         (plan_.norm_samples == 0 || progress_.norms_step == step) && has_finished(run_dir());
}

// Returns whether the run computes the same bits as the one that wrote the checkpoint would have computed.
bool JobTraining::continues_bit_for_bit() const {
  const RunFacts before = facts_of(*from_.checkpoint);
  const bool same_ranks = before.ranks == request_.session.size();
  return (same_ranks || has_fixed_order(plan_.experiment)) && before.threads == threads_ &&
         before.machine == machine_.identity();
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

// Prints changes of keys since the checkpoint, and others since the last start.
void log_changes(const std::vector<KeyChange>& since_checkpoint, const std::vector<KeyChange>& since_last_start) {
  for (const KeyChange& change : since_checkpoint) log_info("changed since that checkpoint: ", to_string(change));
  for (const KeyChange& change : since_last_start)
    if (std::ranges::find(since_checkpoint, change) == since_checkpoint.end())
      log_info("changed since the last start: ", to_string(change));
}

// Returns whether a run with the keys of the last start computes the same steps as it did. The gradients of several
// workers may arrive in another order than before.
bool JobTraining::computes_same_steps(const Experiment& last_start) const {
  const std::string& replay = plan_.experiment.parallel.replay;
  const bool repeats = !replay.empty() && last_start.parallel.replay == replay;
  return !has_ended() && (!plan_.servers || plan_.servers->workers == 1 || repeats);
}

// Prints the step from which the run continues, and what has changed. Returns what happens to the records of later
// steps. They are dropped only if this run computes the same steps again.
LaterRecords JobTraining::describe_resume() const {
  const std::int64_t step = progress_.position.step;
  const std::optional<Experiment> last_start = experiment_of_last_start(run_dir());
  std::vector<KeyChange> since_last_start;
  if (last_start) since_last_start = changed_keys(*last_start, plan_.experiment);
  if (from_.kind != ResumePoint::Kind::own) {
    log_info("no checkpoint in this folder: starting at step ", step);
    log_changes({}, since_last_start);
    return LaterRecords::keep;
  }
  log_info("resuming after step ", step, " from ", from_.path);
  const RecordedSteps recorded = recorded_steps(run_dir(), from_.first_step(), step, progress_.evaluated_step);
  if (const std::int64_t lost = recorded.last - step; lost > 0)
    log_info(lost, lost == 1 ? " update since that checkpoint was" : " updates since that checkpoint were",
             " lost: the job ended without another one");
  if (!recorded.missing.empty())
    log_warning(run_dir(), "/", run_metrics_name, ": has no records of ", recorded.missing,
                ", so tables and reports lack them");
  const Experiment before = experiment_of(*from_.checkpoint, from_.path);
  const std::vector<KeyChange> since_checkpoint = changed_keys(before, plan_.experiment);
  log_changes(since_checkpoint, since_last_start);
  const std::string rates = changed_rate(before, plan_, progress_.position, progress_.scale_invariant_steps);
  if (!has_ended() && !rates.empty()) log_warning("these changes change the learning rate: ", rates);
  if (step > 0 && !continues_bit_for_bit())
    log_info(
        "the checkpoint was made on another machine or number of ranks or threads: it continues within rounding, "
        "not bit for bit");
  const bool same_keys = !decide_result(since_last_start) && !decide_result(since_checkpoint);
  return last_start && same_keys && computes_same_steps(*last_start) ? LaterRecords::drop : LaterRecords::keep;
}

// Prints what will run, and from where. Returns what happens to the records of later steps.
LaterRecords JobTraining::describe_start() const {
  write_info_line(describe_run(plan_, machine_.backend->describe(), memory_));
  log_info("run folder: ", run_dir());
  for (const std::string& warning : plan_warnings(plan_)) log_warning(warning);
  if (from_.kind == ResumePoint::Kind::source) {
    log_info("branch of ", describe_branch(plan_));
    if (!continues_bit_for_bit())
      log_info("that run trained on another machine or number of ranks or threads: the branch goes on within rounding");
  }
  return request_.arguments.resume ? describe_resume() : LaterRecords::drop;
}

RunRecord JobTraining::start_record() const {
  return {.plan = plan_,
          .command_line = request_.arguments.command_line,
          .hosts = request_.session.hosts(),
          .launcher = request_.session.launcher(),
          .threads = threads_,
          .backend = machine_.backend->describe(),
          .communicator = machine_.summing().describe(),
          .resumed_from_step = progress_.position.step,
          .memory = memory_};
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

void JobTraining::open() {
  if (root_ && !folder_) folder_.emplace(run_folder_path(request_.experiment, false), false);
  // The energy counters belong to the whole node. They would include the energy of other runs.
  if (root_ && !request_.arguments.shares_node) energy_ = std::make_unique<EnergyMeter>();
  const bool records = root_ && !is_done();
  const LaterRecords later = root_ ? describe_start() : LaterRecords::drop;
  if (records) record_start(run_dir(), start_record());
  if (root_ && machine_.device && !has_ended()) write_choices(run_dir(), machine_.choices());
  is_recorded_ = records;
  run_ = std::make_unique<TrainingLoop>(plan_, std::move(from_), run_dir(), machine_, threads_, later, watchdog_,
                                        request_.session.job());
  machine_.host->barrier();  // the run has started when every rank has its memory and weights
  if (!root_) return;
  if (records) write_experiment(run_dir(), plan_.experiment, progress_.position.step);
  folder_->become_latest();
}

// ---- train(), and rank 0 at the end ---------------------------------------------------------------------------------

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

void JobTraining::record_outcome(int code, const std::vector<StepTimes>& rank_times,
                                 const std::vector<SentBytes>& rank_bytes) {
  const RunProgress& p = run_->progress();
  record_stop_cost(run_dir(), run_->stop_cost());
  const std::string paused = cat("paused after ", p.position.samples, " samples");
  RunOutcome outcome = outcome_of(code == 0                 ? "finished"
                                  : code == training_paused ? paused
                                                            : "stopped by " + stop_cause(),
                                  p, energy_.get());
  if (code == 0) outcome.end = end_word(run_->end(), request_.experiment.stop);
  outcome.noise = run_->noise_summary();
  outcome.staleness = run_->staleness();
  outcome.rank_times = rank_times;
  outcome.rank_bytes = rank_bytes;
  record_end(run_dir(), outcome);
}

// Prints how the run ended, and why if it ended by itself. The reason is left out if the run has simply done all its
// steps, or if an earlier start has already recorded the end.
void JobTraining::say_outcome(int code) {
  const RunProgress& p = run_->progress();
  const std::string why = code == 0 && is_recorded_ ? describe_end(run_->end(), request_.experiment.stop) : "";
  if (requested_signal() != 0 && code == exit_checkpointed)
    log_info(stop_cause(), " came ", tenths(seconds_since_signal()), " s ago");
  log_info(code == 0                 ? "finished"
           : code == training_paused ? "paused, with a checkpoint,"
                                     : "stopped on request, with a checkpoint",
           " after step ", p.position.step, " and ", std::llround(p.elapsed_seconds), " s", why.empty() ? "" : ": ",
           why, p.has_best ? cat("; best validation loss ", p.best_loss, " at step ", p.best_step) : std::string());
  log_summary(*run_);
  if (const auto staleness = run_->staleness(); !staleness.empty()) write_info_line(describe_staleness(staleness));
  if (p.dropped > 0) log_info(p.dropped, " gradients came too late and were dropped");
  if (const auto noise = run_->noise_summary()) write_info_line(describe(*noise));
  log_info("run folder: ", run_dir());
  if (code == exit_checkpointed) log_info("continue with: ", continuation(run_dir()));
}

int JobTraining::train() {
  run_->pause_after(request_.arguments.pause_after);
  if (replay_end_) {
    if (root_) log_info("the recorded order of arrival ends after step ", *replay_end_, ": the run stops there");
    run_->stop_after(*replay_end_);
  }
  if (folder_) run_->before_saving([this] { folder_->keep_lock(); });
  int code = run_->run();
  if (code == 0 && run_->paused()) code = training_paused;
  const std::vector<StepTimes> times = run_->rank_times();
  const std::vector<SentBytes> bytes = run_->rank_bytes();
  if (is_recorded_) record_outcome(code, times, bytes);
  if (root_) say_outcome(code);
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

int train(const TrainArguments& arguments, Session& session) {
  using End = TrialReport::End;
  const std::string& report = arguments.report;
  if (!report.empty()) expect_output(report, report_file());  // before the errors that write_report() reports
  try {
    const int code = train_run(arguments, session);
    const End end = code == training_paused ? End::paused : code == 0 ? End::finished : End::stopped;
    if (!report.empty() && session.rank() == 0) write_report(report, {end, "", "", ""});
    return code == training_paused ? 0 : code;
  } catch (const std::exception& error) {
    if (!report.empty()) write_report(report, report_of(error));
    throw;
  }
}

}  // namespace ringtrain
