// The loop over the steps of a run, on one rank. After every step it decides whether to evaluate, save or stop. All
// ranks decide alike. train.cpp has what comes before and after the loop.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/resume.h"
#include "checkpoint/writer.h"
#include "cluster/watchdog.h"
#include "data/loader.h"
#include "parallel/arrivals_file.h"
#include "run/machine.h"
#include "run/metrics.h"
#include "run/plan.h"
#include "run/run_end.h"
#include "run/run_record.h"
#include "run/step_bound.h"
#include "train/evaluation.h"
#include "train/steps.h"
#include "train/trainer.h"

namespace ringtrain {

class TrainingLoop {
 public:
  // Takes the memory and loads the weights. `run_dir` matters on rank 0 only. `later` says what happens to records of
  // later steps. Collective.
  TrainingLoop(const RunPlan& plan, ResumePoint from, const std::string& run_dir, const Machine& machine, int threads,
               LaterRecords later, Watchdog& watchdog, const RankGroup& group);

  // Call it before run(). The run then pauses at the first step that reaches this number of samples; 0: it does not
  // pause.
  void pause_after(std::int64_t samples) { pause_samples_ = samples; }
  // Call it before run(), on all ranks. The run then stops after this step, with a checkpoint.
  void stop_after(std::int64_t step) { stop_step_ = step; }
  // Must be called before run(). Rank 0 then calls `call` before it writes a checkpoint. `call` may throw.
  void before_saving(std::function<void()> call) { before_saving_ = std::move(call); }
  // Trains until the run stops, with a checkpoint. Returns the exit code. Collective.
  int run();
  // Returns whether the run has paused at pause_after() before its end.
  bool paused() const;
  // Returns why a run has ended that was neither stopped by a signal nor paused, on rank 0.
  const RunEnd& end() const { return end_; }

  // Returns the updates of an asynchronous run by staleness, with those of earlier starts. Empty on other ranks than 0.
  std::map<std::int64_t, std::int64_t> staleness() const {
    return arrivals_ ? staleness_histogram(read_arrivals(arrivals_->path(), 0))
                     : std::map<std::int64_t, std::int64_t>{};
  }
  const RunProgress& progress() const { return progress_; }
  // Returns the cost of a stop, on rank 0. What this start has not measured is what an earlier start has measured.
  StopCost stop_cost() const;
  // Returns the share of the time of rank 0's steps that was spent waiting for input.
  double input_share() const { return step_seconds_ > 0 ? times_.input / step_seconds_ : 0; }
  // Returns the times of this start's steps for every rank, on rank 0. Collective.
  std::vector<StepTimes> rank_times() { return gather_to_0(communicator_, times_); }
  // Returns the bytes that each rank has sent in these steps, on rank 0. Collective.
  std::vector<SentBytes> rank_bytes() { return gather_to_0(communicator_, sent_); }
  // Returns the summary of the gradient noise, or nothing if the noise was not measured.
  std::optional<NoiseSummary> noise_summary();
  std::vector<double> last_accuracies() const { return recorder_->last_accuracies(); }  // on rank 0

 private:
  Requests requests() const;
  bool reaches_stop_step() const;
  std::string describe_nothing_to_do() const;
  void prepare_to_leave();
  [[noreturn]] void end_diverged();
  bool at_last_step() const;
  bool evaluation_due(bool at_end) const;
  bool checkpoint_due(const Requests& requests) const;
  void record(StepReport& report, const SentBytes& sent);
  std::vector<std::pair<std::string, float>> trust_ratios_by_name(const std::vector<float>& ratios);
  bool norms_are_measured() const { return norms_ != nullptr && measured_step_ == progress_.position.step; }
  bool measure_norms();
  std::optional<Evaluation> run_evaluation();
  bool evaluate(bool& stop);
  void note_kept();
  Checkpoint snapshot();
  void note_stop_cost();
  void finish_writing();
  KnownCheckpoint known_good() const;
  void save(bool best);

  const RunPlan& plan_;
  const Machine& machine_;
  const std::string run_dir_;
  Communicator& communicator_;
  Watchdog& watchdog_;
  int threads_;
  RunProgress progress_;
  std::vector<std::int64_t> kept_;  // steps of checkpoints that are never deleted
  bool begins_;                     // whether the run begins with fresh weights
  std::shared_ptr<const Dataset> train_;
  Loader loader_;
  std::unique_ptr<ServerRanks> servers_;  // null: no parameter servers
  Trainer trainer_;
  std::unique_ptr<Steps> steps_of_run_;
  std::unique_ptr<Evaluator> evaluator_;      // null: no validation data
  std::unique_ptr<NormRecomputation> norms_;  // null: evaluations use the statistics in the weights
  std::unique_ptr<CheckpointWriter> writer_;  // on rank 0, as is the recorder
  std::unique_ptr<Recorder> recorder_;
  std::optional<LossWatch> watch_;          // on rank 0
  std::unique_ptr<ArrivalsFile> arrivals_;  // on rank 0 of an asynchronous run
  double begin_ = 0, last_save_ = 0, step_begin_ = 0;
  double last_comparison_ = 0;  // time of the last comparison of the ranks' copies, by rank 0's clock
  StepTimes times_;             // of this rank's steps, in this start
  SentBytes sent_;              // by this rank in these steps
  double step_seconds_ = 0;     // on rank 0: the same steps as a whole
  std::int64_t steps_ = 0;
  std::int64_t pause_samples_ = 0;
  std::optional<std::int64_t> stop_step_;
  RunEnd end_;
  std::function<void()> before_saving_;
  std::int64_t measured_step_ = -1;  // the step for which norms_ has last measured
  bool leaving_ = false;             // whether a signal has asked the run to stop
  StepBound bound_ = {};             // no ranks: the run has no more steps
  StopCost stop_cost_;               // on rank 0: of an earlier start, or as it was noted; no bytes: not known yet
};

}  // namespace ringtrain
