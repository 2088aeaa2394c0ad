// Writes metrics.jsonl and shows the progress bar or the lines of a batch log. Rank 0 only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "optim/noise_scale.h"
#include "run/step_times.h"

namespace ringtrain {

// The values that are written with a step that measured the gradient noise scale; see optim/noise_scale.h.
struct NoiseRecord {
  NoiseEstimate estimate;                                   // "noise_trace" and "noise_gradient", of this step alone
  NoiseRatio scale;                                         // "noise_scale", "_low" and "_high"; null: unbounded
  std::optional<double> characters_per_sample = {};         // text: "noise_scale_characters" too
  std::string change;                                       // "noise_change", if there is one
  std::vector<std::pair<std::string, double>> groups = {};  // "noise_groups": the scale of each, if there are groups
};

// The values that are written with an update that a parameter server has applied.
struct ServedRecord {
  std::int64_t worker = 0, staleness = 0;   // "worker" and "staleness", in an asynchronous run
  std::int64_t gradients = 1, dropped = 0;  // "gradients" and "dropped", in a run with backup workers
  double worker_wait_seconds = 0;           // "worker_wait_seconds": time in which server 0 had no work from workers
  StepTimes workers;  // "worker_input_seconds" and so on: the workers' times, averaged over this update's gradients
  bool async = false;
};

struct StepRecord {
  std::int64_t step = 0;     // finished updates, from 1
  double epoch = 0;          // finished epochs, with a fraction
  std::int64_t samples = 0;  // samples so far
  double loss = 0;           // the mean over the counted targets of the global batch
  double accuracy = 0;       // the share of targets predicted right, with the weights before the update
  double lr = 0;
  std::int64_t global_batch = 0;  // samples of this step
  double grad_norm = 0;           // before clipping and weight decay
  std::optional<NoiseRecord> noise = std::nullopt;
  std::optional<double> gain = std::nullopt;                   // AdaScale's gain; none if the step was skipped
  std::optional<double> scale_invariant_epoch = std::nullopt;  // finished epochs, with a fraction; AdaScale only
  double loss_scale = 1;                                       // written when it is not 1: fp16
  bool skipped = false;                                        // fp16: the gradient overflowed, so nothing was updated
  std::vector<std::pair<std::string, float>> trust_ratios;     // by name of the tensor; written if there are any
  std::optional<ServedRecord> served = std::nullopt;
  double seconds = 0;  // time of this step
  double samples_per_second = 0;
  std::optional<double> share_of_bound = std::nullopt;  // least seconds of the step / `seconds`; none: not known
  double elapsed_seconds = 0;                           // time of the run, including earlier starts
  StepTimes times;                                      // the parts of `seconds`, of rank 0: "input_seconds" and so on
  bool is_stage = false;                                // pipeline: "bubble_seconds" and "boundary_seconds" are written
  std::optional<SentBytes> sent = std::nullopt;  // "sent_bytes" and "shared_bytes", of rank 0; none with one rank
};

struct EvaluationRecord {
  std::int64_t step = 0;
  double epoch = 0;
  std::int64_t samples = 0;
  double validation_loss = 0;      // the mean over the counted targets, natural logarithm
  double validation_accuracy = 0;  // the share of counted targets predicted right (images: top-1)
  std::optional<double> validation_accuracy5 = std::nullopt;  // among the five likeliest classes; images only
  std::int64_t targets = 0;                                   // number of counted targets
  double seconds = 0;
  bool best = false;
};

// The treatment of the records of steps after the step from which a run continues. `drop`: the same steps are computed
// again with the same result, so the records are deleted. `keep`: the steps may have another result or may not be
// reached again, so the old records move to metrics-steps-<first>-to-<last>.jsonl (-2, ... if that name is taken), and
// a line says so.
enum class LaterRecords { drop, keep };

class Recorder {
 public:
  // Appends to <run_dir>/metrics.jsonl. Before that, it removes records of steps after `resume_step`, and a broken last
  // line, which a killed process leaves. `total_steps` is for the ETA; 0: unknown. `log_every_steps` is the number of
  // steps between lines if stdout is not a terminal. A terminal gets a progress bar with ETA, samples/s and loss.
  Recorder(const std::string& run_dir, std::int64_t resume_step, std::int64_t total_steps, std::int64_t log_every_steps,
           LaterRecords later = LaterRecords::drop);
  ~Recorder();
  void step(const StepRecord& record);
  void evaluation(const EvaluationRecord& record);
  // Writes a line for the user without damaging the progress bar. log_info and log_warning do not damage it either.
  void note(const std::string& line);
  void finish();  // shows the last step and ends the bar's line; call it before the last lines of a run
  // Returns the last validation accuracies (up to five) of this folder, oldest first, including those before a resume.
  // Goyal et al. 2017 (section 5) report the median over the last five epochs.
  std::vector<double> last_accuracies() const;
  void flush();  // syncs metrics.jsonl to disk; called with each checkpoint

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringtrain
