// `ringtrain bench utilisation` shows how much of a machine small and large batches use. It runs training steps on
// random pictures, with growing batches, until a batch does not fit into memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/measure.h"

namespace ringtrain {

// The results for one batch size.
struct UtilisationRow {
  std::int64_t batch = 0;         // samples per rank and step, in one pass
  double seconds = 0;             // a training step with the sum of gradients; 0: does not fit
  double samples_per_second = 0;  // all ranks together
  double flops = 0;               // floating-point operations per second of a rank, in convolutions and dense layers
  double share = 0;               // flops divided by the matrix rate
  std::int64_t memory_bytes = 0;  // memory of a training run on a rank, as `plan` prints it; 0: not known
  bool fits = true;
};

struct Utilisation {
  double matrix_rate = 0;        // floating-point operations per second of a rank with dense layers only
  std::int64_t limit_bytes = 0;  // memory limit of a rank
  std::vector<UtilisationRow> rows;
};

// Returns an experiment with the three-convolution CNN on pictures of 32 x 32 with 10 classes (as in CIFAR-10), for
// users without an experiment file.
Experiment small_cnn_experiment();

// Measures batches of 1, 2, 4, ... up to `largest` (0: up to 2^24), then on a CPU the largest one that fits, and then
// reports the first one that does not. `limit_gib` is the memory limit of a rank. If it is 0, memory.limit_gib is the
// limit, or else nine tenths of the GPU's free memory, or of the rank's share of the node's free memory. The smallest
// limit of all ranks counts. Collective. The result is complete on rank 0, which also writes it to the file `csv`
// unless that is "". Throws Error if the experiment does not train on pictures, or if no batch fits.
Utilisation bench_utilisation(const BenchContext& context, double limit_gib, std::int64_t largest,
                              const std::string& csv);

}  // namespace ringtrain
