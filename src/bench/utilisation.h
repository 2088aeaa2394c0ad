// `ringtrain bench utilisation`: how much of a machine small and large batches use. Training steps of growing batches
// on random pictures, until a batch does not fit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "nn/graph.h"

namespace ringtrain {

// One batch per rank.
struct UtilisationRow {
  std::int64_t batch = 0;         // samples per rank and step, in one pass
  double seconds = 0;             // of a training step, gradients summed over the ranks; 0: it does not fit
  double samples_per_second = 0;  // of all ranks
  double flops = 0;               // of a rank's products, per second
  double share = 0;               // of the matrix rate
  std::int64_t memory_bytes = 0;  // that a training run takes on a rank, as `plan` says
  bool fits = true;
};

struct Utilisation {
  double matrix_rate = 0;        // floating-point operations per second of a rank: dense layers and nothing else
  std::int64_t limit_bytes = 0;  // of a rank's memory
  std::vector<UtilisationRow> rows;
};

// The three-convolution CNN on pictures of 32 x 32 with 10 classes (CIFAR-10's), for which no experiment is needed.
Experiment small_cnn_experiment();

// Multiply and add counted as 2, of a forward and a backward pass: three times the forward pass's, but the first layer
// gives no gradient of the pictures.
std::int64_t training_flops_per_sample(const Graph& graph);

// Batches 1, 2, 4, ... up to `largest` (0: any), then on a CPU the largest that fits, then the first that does not.
// `limit_gib`: of a rank; 0: nine tenths of what is free now, shared by the ranks of a node. Collective; whole on rank
// 0, which also writes `csv` where it is not "". Throws Error where the experiment is not one of pictures, or nothing
// fits.
Utilisation bench_utilisation(const BenchContext& context, double limit_gib, std::int64_t largest,
                              const std::string& csv);

}  // namespace ringtrain
