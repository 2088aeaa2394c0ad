// What is known about a step, and about an evaluation. The trainer and the run fill it in, and the recorder writes it
// to metrics.jsonl.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/communicator.h"
#include "config/batch_course.h"
#include "optim/noise_scale.h"
#include "parallel/parameter_server.h"
#include "parallel/pipeline.h"
#include "parallel/rank_status.h"

namespace ringtrain {

// The noise measured in a step whose gradient was finite.
struct NoiseReport {
  NoiseEstimate estimate;  // from this step alone
  NoiseRatio scale;        // from the averages, in samples
  double targets_per_sample = 1;
  bool is_text = false;                                     // targets are characters
  std::string change = "";                                  // NoiseScale::change()
  std::vector<std::pair<std::string, double>> groups = {};  // noise.groups: kind; the scale of each
};

// The members that TrainingLoop fills in, on rank 0.
struct RecordedStep {
  double epoch = 0;                                       // finished epochs, with a fraction
  std::optional<double> scale_invariant_epoch = {};       // AdaScale only: its finished epochs, with a fraction
  double seconds = 0;                                     // time of this step; StepReport::times has its parts
  std::optional<double> share_of_bound = {};              // least seconds of the step / `seconds`; none: not known
  double elapsed_seconds = 0;                             // time of the run, including earlier starts
  bool is_stage = false;                                  // whether the run is a pipeline
  bool is_async = false;                                  // whether servers apply each gradient when it arrives
  std::optional<SentBytes> sent = {};                     // by rank 0; none with one rank
  std::vector<std::pair<std::string, float>> trust = {};  // the trust ratios by the name of the tensor
};

struct StepReport {
  Position position;                     // position after this step
  std::optional<Position> before;        // position before this step; empty: position of the previous report
  bool met = true;                       // whether all ranks have returned after this update
  std::optional<TakenGradients> served;  // on server 0 if servers have their own ranks: what it has applied
  std::int64_t samples = 0;              // samples of this step
  double loss = 0;                       // the mean over the counted targets of the global batch
  double accuracy = 0;                   // the share of targets predicted right, with the weights before the update
  double learning_rate = 0;              // the rate that was used: the schedule's rate x the gain
  std::optional<double> gain;            // AdaScale's gain; empty without AdaScale or if the step was skipped
  double scale_invariant_steps = 0;      // AdaScale's count, including this step
  double gradient_norm = 0;              // before clipping and weight decay
  float loss_scale = 1;                  // the loss scale of fp16
  bool applied = true;                   // false: the fp16 gradient overflowed, the weights are unchanged
  Requests requests;                     // the sum over all ranks
  std::vector<float> trust_ratios;       // one per range of the optimizer, if this step records them
  std::optional<NoiseReport> noise;      // if this step measured the noise scale
  StepTimes times;                       // times of this rank
  StageWaits stage_waits;                // pipeline only: the mean over its ranks
  RecordedStep run;
};

// The result of an evaluation.
struct Evaluation {
  double loss = 0;                                 // the mean over the counted targets, natural logarithm
  double accuracy = 0;                             // the share of counted targets predicted right (images: top-1)
  std::optional<double> accuracy5 = std::nullopt;  // among the five likeliest classes; images only
  std::int64_t targets = 0;                        // number of counted targets
  double seconds = 0;
};

}  // namespace ringtrain
