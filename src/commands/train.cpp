// `ringtrain train`: from the experiment to the last checkpoint.
#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/version.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/snapshot.h"
#include "commands/commands.h"
#include "config/reader.h"
#include "run/folder.h"
#include "run/library_versions.h"
#include "run/machine.h"
#include "run/record.h"
#include "run/recorder.h"
#include "run/start.h"
#include "run/stop_time.h"
#include "train/evaluator.h"
#include "train/trainer.h"

namespace ringtrain {

namespace {

// What rank 0 found in the run's folder; `step` and `micro_batch` are the same on all ranks.
struct Found {
  std::unique_ptr<Checkpoint> checkpoint;  // rank 0, and only if there is one
  std::string path;
  RunProgress progress;
  std::int64_t micro_batch = 0;
  bool same_machine = true;
  std::optional<StopCost> stop_cost;  // rank 0: as an earlier start measured it
  bool knows_stop_cost = false;       // on all ranks
};

Found find_checkpoint(const std::string& run_dir, bool resume, const Machine& machine, int threads) {
  Communicator& communicator = machine.communicator();
  Found found;
  if (communicator.rank() == 0 && resume) {
    std::vector<std::string> warnings;
    found.path = newest_checkpoint(run_dir, &warnings);
    for (const std::string& w : warnings) log_warning(w);
    if (!found.path.empty()) {
      found.checkpoint = std::make_unique<Checkpoint>(read_checkpoint(found.path));
      found.progress = progress_of(*found.checkpoint);
      found.micro_batch = static_cast<std::int64_t>(found.checkpoint->numbers.at("micro_batch"));
      found.same_machine = found.checkpoint->numbers.at("ranks") == communicator.size() &&
                           found.checkpoint->numbers.at("threads") == threads &&
                           found.checkpoint->text_or("machine", "") == machine.identity();
    }
  }
  if (communicator.rank() == 0 && resume) found.stop_cost = recorded_stop_cost(run_dir);
  found.knows_stop_cost = found.stop_cost.has_value();
  communicator.broadcast(std::as_writable_bytes(std::span(&found.progress, 1)), 0);
  communicator.broadcast(std::as_writable_bytes(std::span(&found.micro_batch, 1)), 0);
  communicator.broadcast(std::as_writable_bytes(std::span(&found.knows_stop_cost, 1)), 0);
  return found;
}

// One run on one rank: owns the parts and decides, after each step, what comes next. All ranks decide alike.
class TrainingRun {
 public:
  TrainingRun(const RunPlan& plan, Found found, const std::string& run_dir, const Machine& machine, int threads,
              Watchdog& watchdog)
      : plan_(plan),
        machine_(machine),
        communicator_(machine.communicator()),
        watchdog_(watchdog),
        threads_(threads),
        progress_(found.progress),
        loader_(make_dataset(plan.train), for_rank(plan.train_loader, communicator_.rank())),
        trainer_(plan, *machine.backend, communicator_, watchdog, loader_) {
    if (plan.has_validation) evaluator_ = std::make_unique<Evaluator>(plan, *machine.backend, communicator_, watchdog);
    load_trainer(found.checkpoint.get(), trainer_, plan, progress_, communicator_);
    if (communicator_.rank() == 0) {
      writer_ = std::make_unique<CheckpointWriter>(run_dir, plan.experiment.checkpoint.keep);
      std::int64_t lines = plan.experiment.run.log_every_steps;
      if (lines == 0) lines = std::max<std::int64_t>(1, plan.schedule.steps_per_epoch / 20);
      recorder_ = std::make_unique<Recorder>(run_dir, progress_.position.step, plan.schedule.total_steps, lines);
    }
    if (!found.knows_stop_cost) found.stop_cost = try_save(run_dir);
    stop_cost_ = found.stop_cost.value_or(StopCost{});
    if (recorder_) {
      recorder_->note(describe(stop_cost_, !found.knows_stop_cost));
      record_stop_cost(run_dir, stop_cost_);
    }
    begin_ = now_seconds() - progress_.elapsed_seconds;
    last_save_ = step_begin_ = now_seconds();
  }

  // Returns the exit code.
  int run() {
    bool stop = at_last_step();
    if (stop && recorder_) recorder_->note(cat("nothing to do: the run has its ", progress_.position.step, " steps"));
    // A signal leaves no time for an evaluation that is due at its step: the resumed run makes up for it.
    if (progress_.position.step > 0 && evaluation_due(stop) && evaluate(stop)) save(true);
    while (!stop) {
      const StepReport report = trainer_.step(requests());
      progress_.position = report.position;
      progress_.elapsed_seconds = now_seconds() - begin_;
      record(report);

      if (report.requests.signal > 0) prepare_to_leave();
      if (report.requests.fail > 0 && writer_) writer_->finish();  // throws what went wrong
      stop = leaving_ || report.requests.stop > 0 || at_last_step();
      const bool improved = !leaving_ && evaluation_due(stop) && evaluate(stop);
      if (stop || improved || report.requests.save > 0 || checkpoint_due()) save(improved);
      step_begin_ = now_seconds();
    }
    if (writer_) writer_->finish();
    if (recorder_) recorder_->finish();
    return leaving_ ? exit_checkpointed : 0;
  }

  const RunProgress& progress() const { return progress_; }
  // Rank 0: as this start has measured it, or the start before where it has written or trained nothing.
  StopCost stop_cost() const {
    StopCost cost = stop_cost_;
    if (writer_->slowest().bytes > 0) cost.checkpoint = writer_->slowest();
    if (steps_ > 0) cost.step_seconds = step_seconds_ / static_cast<double>(steps_);
    return cost;
  }
  // Of rank 0's steps: the share of their time that they waited for input.
  double input_share() const { return step_seconds_ > 0 ? waited_seconds_ / step_seconds_ : 0; }
  std::vector<double> last_accuracies() const { return recorder_->last_accuracies(); }  // rank 0

 private:
  Requests requests() const {
    Requests r;
    if (requested_signal() != 0) r.signal = 1;
    if (communicator_.rank() != 0) return r;
    const StopConfig& s = plan_.experiment.stop;
    const CheckpointConfig& c = plan_.experiment.checkpoint;
    if (s.seconds > 0 && now_seconds() - begin_ >= s.seconds) r.stop = 1;
    if (c.every_seconds > 0 && now_seconds() - last_save_ >= c.every_seconds) r.save = 1;
    if (writer_->failed()) r.fail = 1;
    return r;
  }

  // All ranks alike. From here on only the checkpoint matters.
  void prepare_to_leave() {
    leaving_ = true;
    hold_signals();
  }

  bool at_last_step() const {
    return plan_.schedule.total_steps > 0 && progress_.position.step >= plan_.schedule.total_steps;
  }

  // Now, and not done yet at this step.
  bool evaluation_due(bool at_end) const {
    const EvaluateConfig& e = plan_.experiment.evaluate;
    return evaluator_ && progress_.evaluated_step < progress_.position.step &&
           (at_end || due(e.every_epochs, e.every_steps, plan_, progress_.position));
  }
  bool checkpoint_due() const {
    const CheckpointConfig& c = plan_.experiment.checkpoint;
    return due(c.every_epochs, c.every_steps, plan_, progress_.position);
  }

  double epochs(const Position& position) const { return plan_.schedule.epochs(position); }

  void record(const StepReport& r) {
    if (!recorder_) return;
    StepRecord s;
    s.step = r.position.step;
    s.epoch = epochs(r.position);
    s.samples = r.position.samples;
    s.loss = r.loss;
    s.accuracy = r.accuracy;
    s.lr = r.learning_rate;
    s.grad_norm = r.gradient_norm;
    s.loss_scale = static_cast<double>(r.loss_scale);
    s.skipped = !r.applied;
    s.seconds = now_seconds() - step_begin_;
    s.samples_per_second = static_cast<double>(plan_.batch.global) / s.seconds;
    s.elapsed_seconds = progress_.elapsed_seconds;
    s.input_seconds = r.times.input;
    s.forward_seconds = r.times.forward;
    s.backward_seconds = r.times.backward;
    s.communication_seconds = r.times.communication;
    s.update_seconds = r.times.update;
    recorder_->step(s);
    waited_seconds_ += r.times.input;
    step_seconds_ += s.seconds;
    ++steps_;
  }

  // Returns whether this is the best so far; sets `stop` when the target is reached. A signal ends it half-way: the
  // resumed run begins with it.
  bool evaluate(bool& stop) {
    const std::optional<Evaluation> whole =
        evaluator_->run(trainer_.weights(), progress_.position.step, {}, [] { return requested_signal() != 0; });
    watchdog_.step_finished(progress_.position.step);
    if (!whole) {
      prepare_to_leave();
      stop = true;
      return false;
    }
    const Evaluation& e = *whole;
    progress_.evaluated_step = progress_.position.step;
    const bool finite = std::isfinite(e.loss);
    if (!finite && recorder_)
      log_warning("the validation loss after step ", progress_.position.step, " is ", e.loss,
                  ": the weights or running statistics have outgrown their numbers");
    const bool improved = finite && (!progress_.has_best || e.loss < progress_.best_loss);
    if (improved) {
      progress_.has_best = true;
      progress_.best_loss = e.loss;
      progress_.best_step = progress_.position.step;
    }
    if (recorder_)
      recorder_->evaluation({progress_.position.step, epochs(progress_.position), progress_.position.samples, e.loss,
                             e.accuracy, e.accuracy5, e.targets, e.seconds, improved});
    const StopConfig& s = plan_.experiment.stop;
    if ((s.target_metric == "validation_loss" && e.loss <= s.target_value) ||
        (s.target_metric == "validation_accuracy" && e.accuracy >= s.target_value))
      stop = true;
    return improved && plan_.experiment.checkpoint.best;
  }

  Checkpoint snapshot() {
    Checkpoint c = take_snapshot(trainer_, plan_, progress_, communicator_);
    c.numbers["threads"] = threads_;
    c.texts["machine"] = machine_.identity();
    c.texts["fusions"] = machine_.fusion_choices();
    return c;
  }

  // What a checkpoint costs here, before the first one is needed.
  StopCost try_save(const std::string& run_dir) {
    watchdog_.enter(progress_.position.step, Phase::checkpoint);
    const Checkpoint trial = snapshot();
    StopCost cost;
    if (writer_) cost.checkpoint = try_write(run_dir, trial);
    watchdog_.step_finished(progress_.position.step);
    return cost;
  }

  void save(bool best) {
    watchdog_.enter(progress_.position.step, Phase::checkpoint);
    progress_.elapsed_seconds = now_seconds() - begin_;
    Checkpoint checkpoint = snapshot();
    if (writer_) {
      recorder_->flush();
      writer_->start(std::move(checkpoint), best);
    }
    last_save_ = now_seconds();
    watchdog_.step_finished(progress_.position.step);
  }

  const RunPlan& plan_;
  const Machine& machine_;
  Communicator& communicator_;
  Watchdog& watchdog_;
  int threads_;
  RunProgress progress_;
  Loader loader_;
  Trainer trainer_;
  std::unique_ptr<Evaluator> evaluator_;
  std::unique_ptr<CheckpointWriter> writer_;  // rank 0, as the recorder
  std::unique_ptr<Recorder> recorder_;
  double begin_ = 0, last_save_ = 0, step_begin_ = 0;
  double waited_seconds_ = 0, step_seconds_ = 0;
  std::int64_t steps_ = 0;
  bool leaving_ = false;  // on a signal
  StopCost stop_cost_;    // rank 0: as known at the start
};

std::string percent(double share) {
  char text[16];
  std::snprintf(text, sizeof text, "%.2f %%", 100 * share);
  return text;
}

std::string tenths(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", seconds);
  return text;
}

void log_summary(const TrainingRun& run) {
  log_info("steps waited ", percent(run.input_share()), " of their time for input");
  // As Goyal et al. 2017 report: less noise than the last epoch, no choosing of the best.
  std::vector<double> accuracies = run.last_accuracies();
  if (accuracies.size() < 5) return;
  std::sort(accuracies.begin(), accuracies.end());
  log_info("median validation accuracy of the last 5 evaluations: ", percent(accuracies[accuracies.size() / 2]));
}

// What the steps so far were trained with, when the next ones are trained with something else.
void keep_earlier_experiment(const std::string& run_dir, std::int64_t step) {
  std::error_code ignored;
  std::filesystem::rename(run_dir + "/experiment.yaml", cat(run_dir, "/experiment-until-step-", step, ".yaml"),
                          ignored);
}

RunRecord run_record(const RunPlan& plan, const TrainArguments& arguments, const Session& session, int threads,
                     const Machine& machine, const std::vector<MemoryItem>& memory, std::int64_t resumed_from) {
  RunRecord r;
  r.name = plan.experiment.name;
  r.commit = build_commit();
  r.build_flags = build_flags();
  r.command_line = arguments.command_line;
  r.versions = library_versions();
  r.hosts = session.hosts();
  r.launcher = session.launcher();
  r.ranks = session.size();
  r.threads = threads;
  r.instruction_set = build_instruction_sets();
  r.backend = machine.backend->describe();
  r.precision = plan.experiment.precision;
  r.communicator = machine.communicator().describe();
  r.batch = plan.batch;
  r.steps_per_epoch = plan.schedule.steps_per_epoch;
  r.total_steps = plan.schedule.total_steps;
  r.resumed_from_step = resumed_from;
  r.train_dataset = plan.train.prefix;
  r.train_uuid = plan.train.dataset_uuid;
  r.train_samples = plan.samples_per_epoch;
  if (plan.has_validation) {
    r.validation_dataset = plan.validation.prefix;
    r.validation_uuid = plan.validation.dataset_uuid;
    r.validation_samples = samples_per_epoch(plan.validation, plan.validation_loader);
  }
  r.parameters = plan.parameters.count();
  for (const MemoryItem& item : memory) r.memory_bytes.emplace_back(item.what, item.bytes);
  return r;
}

// Of this rank; the signal may have come to others only.
std::string stop_cause() {
  return requested_signal() != 0 ? signal_name(requested_signal()) : "a signal to another rank";
}

}  // namespace

int train(const TrainArguments& arguments, Session& session) {
  const bool resume = arguments.resume;
  const bool root = session.rank() == 0;
  std::unique_ptr<Communicator> start = make_mpi_communicator(1 << 16);
  const Experiment experiment = shared_experiment(arguments.experiment, *start);
  Watchdog watchdog(experiment.communication.timeout_seconds);
  const DatasetIndex train_index = shared_index(experiment.data.train, *start);
  DatasetIndex validation_index;
  if (!experiment.data.validation.empty()) validation_index = shared_index(experiment.data.validation, *start);
  const DatasetIndex* validation = experiment.data.validation.empty() ? nullptr : &validation_index;

  const int threads = thread_count(experiment, session);
  std::string run_dir = root && resume ? run_folder_path(experiment, resume) : "";
  const RunChoices kept = share_choices(root && resume ? read_choices(run_dir) : RunChoices(), *start);
  Machine machine = make_machine(experiment, session, threads, kept);
  if (root && !resume) run_dir = run_folder_path(experiment, resume);  // made only once there is a machine
  Found found = find_checkpoint(run_dir, resume, machine, threads);
  machine.take_choices(found.checkpoint ? found.checkpoint->text_or("fusions", "") : "", kept);
  RunPlan plan;
  std::vector<MemoryItem> memory;
  machine.agree_on_fusions([&] {
    plan = make_run_plan(experiment, train_index, validation, session.size(), *machine.backend, found.micro_batch);
    memory = rank_memory(plan, *machine.backend);
  });
  if (found.checkpoint) check_belongs(*found.checkpoint, found.path, plan);
  std::unique_ptr<RunFolder> folder;
  if (root) folder = std::make_unique<RunFolder>(run_dir, resume);  // errors come before any folder is made

  found.progress.position = complete(found.progress.position, plan);
  const RunProgress from = found.progress;
  log_job(session, machine.gpu);
  if (root) {
    write_info_line(describe_run(plan, machine.backend->describe(), memory));
    log_info("run folder: ", run_dir);
    const bool more = plan.schedule.total_steps == 0 || from.position.step < plan.schedule.total_steps;
    if (!found.path.empty()) {
      log_info("resuming after step ", from.position.step, " from ", found.path);
      const std::vector<std::string> changes = changed_keys(*found.checkpoint, found.path, experiment);
      for (const std::string& change : changes) log_info("changed since that checkpoint: ", change);
      if (!changes.empty() && more) keep_earlier_experiment(run_dir, from.position.step);
      if (!found.same_machine && from.position.step > 0)
        log_info(
            "the checkpoint was made on another machine or number of ranks or threads: it continues within rounding, "
            "not bit for bit");
    } else if (resume) {
      log_info("no checkpoint in this folder: starting at step 0");
    }
    if (more) write_file_atomically(run_dir + "/experiment.yaml", to_yaml(experiment));
    record_start(run_dir, run_record(plan, arguments, session, threads, machine, memory, from.position.step));
    if (more && machine.device) write_choices(run_dir, machine.choices());
  }

  std::unique_ptr<TrainingRun> run;
  const auto outcome = [&](const std::string& text, const std::string& place_in_code = "") {
    if (!root) return;
    const RunProgress& p = run ? run->progress() : from;
    record_end(run_dir, {text, p.position.step, p.elapsed_seconds, p.has_best ? "validation_loss" : "", p.best_loss,
                         p.best_step, place_in_code});
  };
  try {
    run = std::make_unique<TrainingRun>(plan, std::move(found), run_dir, machine, threads, watchdog);
    const int code = run->run();
    if (root) record_stop_cost(run_dir, run->stop_cost());
    outcome(code == 0 ? "finished" : "stopped by " + stop_cause());
    if (root) {
      const RunProgress& p = run->progress();
      if (requested_signal() != 0 && code != 0)
        log_info(stop_cause(), " came ", tenths(seconds_since_signal()), " s ago");
      log_info(code == 0 ? "finished" : "stopped on request, with a checkpoint", " after step ", p.position.step,
               " and ", std::llround(p.elapsed_seconds), " s",
               p.has_best ? cat("; best validation loss ", p.best_loss, " at step ", p.best_step) : std::string());
      log_summary(*run);
      log_info("run folder: ", run_dir);
      if (code != 0)
        log_info("continue with: ringtrain train ", run_dir, "/experiment.yaml",
                 experiment.run.dir.empty() && experiment.run.id.empty() ? " run.dir=" + run_dir : "", " --resume");
    }
    machine.host->barrier();
    return code;
  } catch (const std::exception& e) {
    machine.communicator().abort(e.what());
    try {
      if (run || resume)
        outcome(cat("error: ", e.what()), thrown_at(e));
      else if (root)
        std::filesystem::remove_all(run_dir);  // nothing has run in it: it must not stand in the next try's way
    } catch (const std::exception&) {
      // The first error is the one to tell.
    }
    throw;
  }
}

}  // namespace ringtrain
