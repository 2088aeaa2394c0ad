// Writes metrics.jsonl and shows the progress bar or the lines of a batch log. Rank 0 only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "optim/noise_scale.h"
#include "parallel/pass_order.h"

namespace ringtrain {

// Written with a step that measured the gradient noise scale, see optim/noise_scale.h.
struct NoiseRecord {
  NoiseEstimate estimate;                                   // "noise_trace" and "noise_gradient", of this step alone
  NoiseRatio scale;                                         // "noise_scale", "_low" and "_high"; null: unbounded
  std::optional<double> characters_per_sample = {};         // text: "noise_scale_characters" too
  std::string change;                                       // "noise_change", where there is one
  std::vector<std::pair<std::string, double>> groups = {};  // "noise_groups": the scale of each; where there are some
};

// Written with an update that a parameter server has applied.
struct ServedRecord {
  std::int64_t worker = 0, staleness = 0;   // "worker" and "staleness", of an asynchronous run
  std::int64_t gradients = 1, dropped = 0;  // "gradients" and "dropped", of a run with backup workers
  double server_wait_seconds = 0;           // the server waited for workers
  bool async = false;
};

struct StepRecord {
  std::int64_t step = 0;     // finished updates, from 1
  double epoch = 0;          // finished epochs, a fraction
  std::int64_t samples = 0;  // cumulative
  double loss = 0;           // mean over the counted targets of the global batch
  double accuracy = 0;       // share of them predicted right, before the update
  double lr = 0;
  std::int64_t global_batch = 0;  // samples of this step
  double grad_norm = 0;           // before clipping and decay
  std::optional<NoiseRecord> noise = std::nullopt;
  std::optional<double> gain = std::nullopt;                   // AdaScale's; none where the step was skipped
  std::optional<double> scale_invariant_epoch = std::nullopt;  // finished ones, a fraction; written with AdaScale
  double loss_scale = 1;                                       // written when it is not 1: fp16
  bool skipped = false;                                     // the same: the gradient overflowed and nothing was updated
  std::vector<std::pair<std::string, float>> trust_ratios;  // of tensors, by name; written when there are some
  std::optional<ServedRecord> served = std::nullopt;
  double seconds = 0;  // of this step
  double samples_per_second = 0;
  double elapsed_seconds = 0;  // of the run, earlier parts included
  // The step's time split; what is left over is bookkeeping.
  double input_seconds = 0, forward_seconds = 0, backward_seconds = 0, communication_seconds = 0, update_seconds = 0;
  std::optional<PassTimes> passes = std::nullopt;  // "bubble_seconds" and "boundary_seconds", of a pipeline
  double server_wait_seconds = 0;  // part of communication_seconds; 0: the servers are not ranks that work
};

struct EvaluationRecord {
  std::int64_t step = 0;
  double epoch = 0;
  std::int64_t samples = 0;
  double validation_loss = 0;      // mean over the counted targets, natural logarithm
  double validation_accuracy = 0;  // share of counted targets predicted right (images: top-1)
  std::optional<double> validation_accuracy5 = std::nullopt;  // among the five likeliest; of images
  std::int64_t targets = 0;                                   // how many were counted
  double seconds = 0;
  bool best = false;
};

// Records of steps after the one that a run goes on from. `drop`: the same steps are computed again with the same
// result. `keep`: they may come out differently or never be reached again, so the old records move to
// metrics-steps-<first>-to-<last>.jsonl (-2, ... when that name is taken), and a line says so.
enum class LaterRecords { drop, keep };

class Recorder {
 public:
  // Appends to <run_dir>/metrics.jsonl, cut back to records with step <= `resume_step` first (a broken last line, the
  // mark of a kill, goes in any case). `total_steps` for the ETA, 0: unknown. `log_every_steps`: lines when stdout is
  // no terminal; a terminal gets a progress bar (rate-limited) with ETA, samples/s and loss.
  Recorder(const std::string& run_dir, std::int64_t resume_step, std::int64_t total_steps, std::int64_t log_every_steps,
           LaterRecords later = LaterRecords::drop);
  ~Recorder();
  void step(const StepRecord& record);
  void evaluation(const EvaluationRecord& record);
  // A line for the user that does not break the progress bar; log_info and log_warning do not break it either.
  void note(const std::string& line);
  void finish();  // the last step is shown and the bar's line ended: call before the closing words of a run
  // The last (up to five) validation accuracies of this folder, those before a resume included, oldest first: Goyal et
  // al. 2017 (section 5) report the median over the last five epochs.
  std::vector<double> last_accuracies() const;
  void flush();  // metrics.jsonl to the operating system (every step) and disk (checkpoints)

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringtrain
