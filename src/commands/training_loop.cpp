#include "commands/training_loop.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/table.h"
#include "checkpoint/snapshot.h"
#include "cluster/launcher.h"
#include "commands/commands.h"
#include "run/course.h"
#include "run/split.h"
#include "run/start.h"

namespace ringtrain {

TrainingLoop::TrainingLoop(const RunPlan& plan, ResumePoint from, const std::string& run_dir, const Machine& machine,
                           int threads, LaterRecords later, Watchdog& watchdog, const RankGroup& group)
    : plan_(plan),
      machine_(machine),
      run_dir_(run_dir),
      communicator_(machine.communicator()),
      watchdog_(watchdog),
      threads_(threads),
      progress_(from.progress),
      begins_(from.kind == ResumePoint::Kind::beginning),
      train_(shared_dataset(plan.train, group)),
      loader_(train_, train_loader_of(plan, communicator_.rank())),
      servers_(make_server_ranks(plan, group)),
      trainer_(plan, *machine.backend, communicator_, watchdog, loader_,
               servers_ ? std::optional(servers_->update_share()) : std::nullopt, machine.stages.get()) {
  if (plan.has_validation)
    evaluator_ = std::make_unique<Evaluator>(plan, shared_dataset(plan.validation, group), *machine.backend,
                                             communicator_, watchdog, machine.stages.get());
  if (plan.norm_samples > 0)
    norms_ = std::make_unique<NormRecomputation>(plan, train_, *machine.backend, communicator_, watchdog);
  if (from.checkpoint && from.kind == ResumePoint::Kind::own) {
    kept_ = kept_steps(*from.checkpoint);
    note_kept();
  }
  load_trainer(from.checkpoint.get(), trainer_, plan, progress_, communicator_, machine.stages.get());
  trainer_.compare_copies([this] { return known_good(); });
  steps_of_run_ = make_steps({plan, *machine.backend, trainer_, loader_, communicator_, watchdog, servers_.get()},
                             [this](const Position& before, const Position& position) {
                               const bool pauses = pause_samples_ > 0 && position.samples >= pause_samples_;
                               return pauses || all_meet_after(plan_, before, position);
                             });
  if (communicator_.rank() == 0) {
    if (plan.servers && plan.servers->async)
      arrivals_ = std::make_unique<ArrivalsFile>(run_dir, from.first_step(), progress_.position.step);
    writer_ = std::make_unique<CheckpointWriter>(run_dir, plan.experiment.checkpoint.keep);
    std::int64_t lines = plan.experiment.run.log_every_steps;
    if (lines == 0) lines = std::max<std::int64_t>(1, plan.schedule.steps_per_epoch / 20);
    recorder_ = std::make_unique<Recorder>(run_dir, progress_.position.step, plan.updates, lines, later);
    watch_.emplace(plan);
    watch_->read(run_dir);
  }
  if (recorder_ && from.stop_cost) {
    stop_cost_ = *from.stop_cost;
    recorder_->note(describe(stop_cost_, false, slurm_job().in_slurm()));
    record_stop_cost(run_dir, stop_cost_);
  }
  if (!end_of(plan, progress_))
    bound_ = measure_step_bound(plan, trainer_.part(), trainer_.passes().program(), machine);
  if (recorder_ && bound_.ranks > 0) record_bound(run_dir, bound_);
  begin_ = now_seconds() - progress_.elapsed_seconds;
  last_save_ = last_comparison_ = now_seconds();
}

int TrainingLoop::run() {
  std::optional<RunEnd> ended = end_of(plan_, progress_);
  if (!ended && reaches_stop_step()) ended = RunEnd{RunEnd::Cause::recorded_order};
  end_ = ended.value_or(RunEnd{});
  bool stop = ended || paused();
  if (begins_ && reaches_kept_point(plan_, progress_.before, progress_.position)) save(false);  // the initial weights
  // If a signal stopped the earlier start, an evaluation that was due and the recomputation of batch norm's statistics
  // were left out. Both are done now.
  if (progress_.position.step > 0) {
    const bool evaluates = evaluation_due(stop);
    const bool is_best = evaluates && evaluate(stop);
    const bool lacks_norms = norms_ && progress_.norms_step != progress_.position.step;
    const bool saves = !leaving_ && (is_best || (stop && (evaluates || lacks_norms)));
    if (saves) save(is_best);
    if (stop && !evaluates && !saves && recorder_) recorder_->note(describe_nothing_to_do());
  }
  step_begin_ = now_seconds();
  while (!stop && !leaving_) {
    const SentBytes sent_before = sent_bytes();
    StepReport report = steps_of_run_->step(requests());
    const SentBytes sent = sent_bytes() - sent_before;
    progress_.before = report.before.value_or(progress_.position);
    progress_.position = report.position;
    progress_.scale_invariant_steps = report.scale_invariant_steps;
    progress_.elapsed_seconds = now_seconds() - begin_;
    times_ += report.times;
    sent_ += sent;
    if (report.requests.check > 0) last_comparison_ = now_seconds();
    record(report, sent);
    note_stop_cost();
    if (!report.met) {  // no work is due that needs the other ranks
      step_begin_ = now_seconds();
      continue;
    }

    if (report.requests.signal > 0) prepare_to_leave();
    if (report.requests.fail > 0 && writer_) writer_->finish();  // throws the error of the write
    if (report.requests.diverged > 0 && !leaving_ && !at_last_step()) end_diverged();
    stop = leaving_ || report.requests.stop > 0 || at_last_step();
    if (report.requests.stop > 0 && !at_last_step())
      end_.cause = reaches_stop_step() ? RunEnd::Cause::recorded_order : RunEnd::Cause::seconds;
    const bool is_best = !leaving_ && evaluation_due(stop) && evaluate(stop);
    if (stop || is_best || checkpoint_due(report.requests)) save(is_best);
    step_begin_ = now_seconds();
  }
  finish_writing();
  note_stop_cost();
  if (recorder_) {
    recorder_->finish();
    recorder_->require_file();
  }
  return leaving_ ? exit_checkpointed : 0;
}

bool TrainingLoop::reaches_stop_step() const {
  return stop_step_ && progress_.position.step >= *stop_step_;
}

std::string TrainingLoop::describe_nothing_to_do() const {
  if (paused()) return cat("nothing to do: the run pauses after ", progress_.position.samples, " samples");
  if (end_.cause != RunEnd::Cause::all_steps) return "nothing to do: " + describe_end(end_, plan_.experiment.stop);
  return "nothing to do: the run has its " + counted(progress_.position.step, "step");
}

StopCost TrainingLoop::stop_cost() const {
  StopCost cost = stop_cost_;
  if (writer_->slowest().bytes > 0) cost.checkpoint = writer_->slowest();
  if (steps_ > 0) cost.step_seconds = step_seconds_ / static_cast<double>(steps_);
  return cost;
}

std::optional<NoiseSummary> TrainingLoop::noise_summary() {
  const NoiseScale& noise = trainer_.noise().scale();
  if (!plan_.measures_noise || noise.empty()) return std::nullopt;
  NoiseSummary summary{.mean = noise.mean(),
                       .scale = noise.ratio(),
                       .batch = trainer_.batch(),
                       .training_samples = plan_.samples_per_epoch};
  if (!plan_.train.is_image()) summary.characters_per_sample = noise.targets_per_sample();
  if (const std::optional<NoiseGroups>& groups = trainer_.noise().groups())
    for (std::size_t i = 0; i < groups->size(); ++i)
      if (const NoiseScale& own = groups->scale(i); !own.empty())
        summary.groups.push_back({groups->name(i), own.mean(), own.ratio()});
  return summary;
}

Requests TrainingLoop::requests() const {
  Requests r;
  if (requested_signal() != 0) r.signal = 1;
  if (communicator_.rank() != 0) return r;
  const StopConfig& s = plan_.experiment.stop;
  const CheckpointConfig& c = plan_.experiment.checkpoint;
  if (stop_step_ && progress_.position.step + 1 >= *stop_step_) r.stop = 1;
  if (s.seconds > 0 && now_seconds() - begin_ >= s.seconds) r.stop = 1;
  if (c.every_seconds > 0 && now_seconds() - last_save_ >= c.every_seconds) r.save = 1;
  if (writer_->failed()) r.fail = 1;
  if (watch_->has_diverged()) r.diverged = 1;
  if (trainer_.compares_copies() && plan_.experiment.communication.check_every_steps < 0 &&
      is_time_to_compare(now_seconds() - last_comparison_, trainer_.comparison_seconds()))
    r.check = 1;
  return r;
}

// All ranks call this after the same step. The run then only writes its checkpoint and ends.
void TrainingLoop::prepare_to_leave() {
  leaving_ = true;
  hold_signals();
}

// All ranks call this after the same step. The weights are of no use, so no checkpoint is written.
void TrainingLoop::end_diverged() {
  finish_writing();
  const std::string what = broadcast_string(communicator_, watch_ ? watch_->describe() : "", 0);
  throw Diverged(
      cat("step ", progress_.position.step, ": ", what),
      "lower learning_rate.base, lengthen the warm-up or set optimizer.clip_norm; stop.diverged_share=0 with "
      "--resume trains on in spite of it");
}

bool TrainingLoop::paused() const {
  return pause_samples_ > 0 && progress_.position.samples >= pause_samples_ &&
         !has_all_steps(plan_, progress_.position, progress_.scale_invariant_steps);
}

bool TrainingLoop::at_last_step() const {
  return paused() || has_all_steps(plan_, progress_.position, progress_.scale_invariant_steps);
}

// Returns whether an evaluation is due at this step and has not been made yet.
bool TrainingLoop::evaluation_due(bool at_end) const {
  const EvaluateConfig& e = plan_.experiment.evaluate;
  return evaluator_ && progress_.evaluated_step < progress_.position.step &&
         (at_end || due(e.every_epochs, e.every_steps, plan_, progress_.before, progress_.position, e.offset_epochs));
}

bool TrainingLoop::checkpoint_due(const Requests& requests) const {
  const CheckpointConfig& c = plan_.experiment.checkpoint;
  if (requests.save > 0 || reaches_kept_point(plan_, progress_.before, progress_.position)) return true;
  return due(c.every_epochs, c.every_steps, plan_, progress_.before, progress_.position);
}

void TrainingLoop::record(StepReport& r, const SentBytes& sent) {
  if (!recorder_) return;
  r.run.epoch = plan_.schedule.epochs(r.position);
  if (plan_.adascale_times > 0)
    r.run.scale_invariant_epoch = r.scale_invariant_steps / static_cast<double>(plan_.base_schedule.steps_per_epoch);
  r.run.seconds = now_seconds() - step_begin_;
  if (bound_.ranks > 0) r.run.share_of_bound = bound_.step_seconds(r.samples) / r.run.seconds;
  r.run.elapsed_seconds = progress_.elapsed_seconds;
  r.run.is_stage = plan_.stages() > 1;
  r.run.is_async = plan_.servers && plan_.servers->async;
  if (communicator_.size() > 1) r.run.sent = sent;
  r.run.trust = trust_ratios_by_name(r.trust_ratios);
  if (r.served) progress_.dropped += r.served->dropped;
  recorder_->step(r);
  watch_->add({.step = r.position.step,
               .samples = r.position.samples,
               .elapsed_seconds = r.run.elapsed_seconds,
               .scale_invariant_epoch = r.run.scale_invariant_epoch.value_or(0)},
              r.loss);
  if (arrivals_)
    arrivals_->add({.step = r.position.step,
                    .update = r.served->last.update,
                    .worker = r.served->last.worker,
                    .version = r.served->last.version,
                    .samples = r.position.samples});
  step_seconds_ += r.run.seconds;
  ++steps_;
}

// Returns the trust ratios of the tensors that have one.
std::vector<std::pair<std::string, float>> TrainingLoop::trust_ratios_by_name(const std::vector<float>& ratios) {
  std::vector<std::pair<std::string, float>> named;
  if (ratios.empty()) return named;
  const auto ranges = trainer_.optimizer().ranges();
  auto parameter = trainer_.part().parameters.all().begin();  // in the order of the ranges
  for (std::size_t i = 0; i < ratios.size(); ++i, ++parameter)
    if (ranges[i].has_trust_ratio) named.emplace_back(parameter->name, ratios[i]);
  return named;
}

// Recomputes the statistics with which batch norm is evaluated, for the present weights. Returns false if a signal
// ended it before its end.
bool TrainingLoop::measure_norms() {
  if (!norms_ || norms_are_measured()) return true;
  const std::int64_t step = progress_.position.step;
  const bool measured = norms_->measure(trainer_.evaluated_weights(), step, [] { return requested_signal() != 0; });
  watchdog_.step_finished(step);
  if (measured) measured_step_ = step;
  return measured;
}

// Evaluates. Returns nothing if a signal has ended the evaluation before its end.
std::optional<Evaluation> TrainingLoop::run_evaluation() {
  if (!measure_norms()) return std::nullopt;
  Vector& weights = trainer_.evaluated_weights();
  if (norms_) norms_->exchange(weights);
  const auto whole = evaluator_->run(weights, progress_.position.step, {}, [] { return requested_signal() != 0; });
  if (norms_) norms_->exchange(weights);
  watchdog_.step_finished(progress_.position.step);
  return whole;
}

// Evaluates. Returns whether a new best checkpoint must be written: the loss is the best so far, and checkpoint.best is
// true. Sets `stop` if the target is reached, or if a signal ends the evaluation before its end. In the second case,
// the resumed run begins with this evaluation.
bool TrainingLoop::evaluate(bool& stop) {
  const std::optional<Evaluation> whole = run_evaluation();
  if (!whole) {
    prepare_to_leave();
    stop = true;
    return false;
  }
  const Evaluation& e = *whole;
  progress_.evaluated_step = progress_.position.step;
  progress_.evaluated_loss = e.loss;
  progress_.evaluated_accuracy = e.accuracy;
  const bool finite = std::isfinite(e.loss);
  if (!finite && recorder_)
    log_warning("the validation loss after step ", progress_.position.step, " is ", e.loss,
                ": the weights or batch norm's running statistics have become too large for their number type");
  const bool improved = finite && (!progress_.has_best || e.loss < progress_.best_loss);
  if (improved) {
    progress_.has_best = true;
    progress_.best_loss = e.loss;
    progress_.best_step = progress_.position.step;
  }
  if (recorder_)
    recorder_->evaluation({.position = progress_.position,
                           .epoch = plan_.schedule.epochs(progress_.position),
                           .result = e,
                           .best = improved});
  if (const std::optional<RunEnd> reached = target_end(plan_.experiment.stop, e.loss, e.accuracy)) {
    stop = true;
    end_ = *reached;
  }
  return improved && plan_.experiment.checkpoint.best;
}

Checkpoint TrainingLoop::snapshot() {
  const std::span<const float> norms = norms_are_measured() ? norms_->values() : std::span<const float>{};
  const RunFacts facts{.threads = threads_,
                       .compared = trainer_.compares_copies(),  // save() has compared the copies
                       .machine = machine_.identity(),
                       .fusions = machine_.fusion_choices(),
                       .ranks = communicator_.size(),
                       .micro_batch = plan_.batch.micro_batch};
  return take_snapshot(trainer_, plan_, {progress_, facts, kept_}, communicator_, norms, machine_.stages.get());
}

// Adds this step to the checkpoints of checkpoint.keep_at, if the step has reached one of these points.
void TrainingLoop::note_kept() {
  const std::int64_t step = progress_.position.step;
  if (reaches_kept_point(plan_, progress_.before, progress_.position) && std::ranges::count(kept_, step) == 0)
    kept_.push_back(step);
}

// Prints and records what a stop costs, as soon as the first checkpoint of the run has been written.
void TrainingLoop::note_stop_cost() {
  const bool is_known = stop_cost_.checkpoint.bytes > 0;
  if (!recorder_ || is_known || !writer_->work().ended_within(0) || writer_->slowest().bytes == 0) return;
  stop_cost_ = stop_cost();
  recorder_->note(describe(stop_cost_, true, slurm_job().in_slurm()));
  record_stop_cost(run_dir_, stop_cost_);
}

// Waits, on all ranks, until rank 0 has written the last checkpoint. Rank 0 throws the error of the write, if any.
void TrainingLoop::finish_writing() {
  wait_together(writer_ ? &writer_->work() : nullptr, communicator_, watchdog_, progress_.position.step);
  if (writer_) writer_->finish();
}

// Rank 0 calls this. Returns the newest checkpoint whose copies were compared. If there is none, returns the newest one
// that can be read. Checkpoints of later steps are left out: --resume did not use them, because they are damaged.
KnownCheckpoint TrainingLoop::known_good() const try {
  KnownCheckpoint newest{.name = "", .compared = false};
  for (const std::int64_t step : checkpoint_steps(run_dir_)) {
    if (step > progress_.position.step) continue;
    const std::string path = checkpoint_path(run_dir_, step), name = cat(path, " (after step ", step, ")");
    try {
      if (facts_of(read_checkpoint_header(path)).compared) return {.name = name};
    } catch (const Error&) {
      continue;
    }
    if (newest.name.empty()) newest.name = name;
  }
  return newest;
} catch (const Error&) {  // the folder cannot be listed; the caller is about to report another error
  return {.name = "", .compared = false};
}

void TrainingLoop::save(bool best) {
  finish_writing();
  watchdog_.enter(progress_.position.step, Phase::checkpoint);
  trainer_.check_copies();
  watchdog_.step_finished(progress_.position.step);
  if (!leaving_ && !measure_norms()) prepare_to_leave();
  progress_.norms_step = norms_are_measured() ? measured_step_ : -1;
  progress_.elapsed_seconds = now_seconds() - begin_;
  note_kept();
  Checkpoint checkpoint = snapshot();
  if (writer_) {
    if (before_saving_) before_saving_();
    recorder_->flush();
    if (arrivals_) arrivals_->sync();
    writer_->start(std::move(checkpoint), best);
  }
  if (of_rank_0(communicator_, recorder_ && recorder_->is_lost())) {
    finish_writing();  // the checkpoint stays
    if (recorder_) recorder_->require_file();
  }
  last_save_ = now_seconds();
  watchdog_.step_finished(progress_.position.step);
}

}  // namespace ringtrain
