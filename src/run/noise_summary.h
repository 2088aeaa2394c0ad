// The summary of the gradient noise scale at the end of a run, and the prediction for other batches.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "optim/noise_scale.h"

namespace ringtrain {

// The noise scale of a group of parameters (noise.groups): its share of tr(Sigma) and |G|^2, and their ratio.
struct NoiseOfGroup {
  std::string name;
  NoiseEstimate mean;
  NoiseRatio scale;
};

struct NoiseSummary {
  NoiseEstimate mean;                                // averages at the last step
  NoiseRatio scale;                                  // of them, in samples
  std::int64_t batch = 0;                            // of the last step
  std::int64_t training_samples = 0;                 // D
  std::optional<double> characters_per_sample = {};  // of text
  std::vector<NoiseOfGroup> groups = {};             // none: nobody asked

  // For the loss over the training set.
  double scale_of_training_set() const;
};

// One step at `batch` does as much as `gain` steps at the run's own batch, with `efficiency` x its samples.
struct PredictedBatch {
  std::int64_t batch = 0;
  double gain = 0, efficiency = 0;
};
// From a quarter of the run's batch to 64 times it, in powers of two. Empty where the noise scale is not above 0: the
// gradient's average is then lost in its scatter.
std::vector<PredictedBatch> predicted_batches(const NoiseSummary& summary);

// The table for the log.
std::string describe(const NoiseSummary& summary);

}  // namespace ringtrain
