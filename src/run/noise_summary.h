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
  NoiseRatio scale;                                  // the ratio of the averages, in samples
  std::int64_t batch = 0;                            // batch of the last step
  std::int64_t training_samples = 0;                 // size of the training set
  std::optional<double> characters_per_sample = {};  // text only
  std::vector<NoiseOfGroup> groups = {};             // empty: noise.groups is off

  // Returns the noise scale, in samples, for the loss over the training set; see of_training_set().
  double scale_of_training_set() const;
};

// One step at `batch` makes as much progress as `gain` steps at the run's own batch. One sample of that step makes
// `efficiency` times as much progress as one sample at the run's own batch.
struct PredictedBatch {
  std::int64_t batch = 0;
  double gain = 0, efficiency = 0;
};
// Returns predictions from a quarter of the run's batch to 64 times the batch, in powers of two. Batches that are not
// whole numbers are left out. The result is empty if the noise scale is not finite or not above 0, because the noise
// then hides the average gradient.
std::vector<PredictedBatch> predicted_batches(const NoiseSummary& summary);

// Returns the table for the log.
std::string describe(const NoiseSummary& summary);

}  // namespace ringtrain
