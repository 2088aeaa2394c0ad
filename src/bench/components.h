// `ringtrain bench components`: a training pipeline of images taken apart. Each part is removed in turn, and the
// throughput without it says what it costs while everything else runs beside it:
//
//   storage ─► decode ─► augment ─► copy ─► compute ─► all-reduce
#pragma once

#include <string>
#include <vector>

#include "bench/measure.h"

namespace ringtrain {

struct ComponentRow {
  std::string removed;            // "nothing", "storage", ...
  double samples_per_second = 0;  // of all ranks
  double seconds = 0;             // of a step
  double cost_seconds = 0;        // by which a step without it is shorter; below 0: by noise, or not at all
};

// Collective; whole on rank 0, which also writes `csv` where it is not "". Rows: nothing removed first, then each part
// that this pipeline has: no decode of data sets of pixels, no copy to a CPU, no all-reduce of one rank. Throws Error
// where the experiment is not one of images.
std::vector<ComponentRow> bench_components(const BenchContext& context, const std::string& csv);

}  // namespace ringtrain
