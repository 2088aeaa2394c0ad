// `ringtrain bench components` takes a training pipeline of images apart. It removes each part in turn. The gain in
// throughput is the cost of that part while all other parts run at the same time:
//
//   storage ─► decode ─► augment ─► copy ─► compute ─► all-reduce
#pragma once

#include <string>
#include <vector>

#include "bench/measure.h"

namespace ringtrain {

struct ComponentRow {
  std::string removed;            // "nothing", "storage", ...
  double samples_per_second = 0;  // over all ranks
  double seconds = 0;             // per step
  double cost_seconds = 0;        // how much shorter a step is without the part; noise can make it negative
};

// Measures the whole pipeline first, and then the pipeline without each of its parts. Data sets of pixels have no
// decoding, CPUs no copy, and a single rank no all-reduce. Collective. The result is complete on rank 0, which also
// writes it to the file `csv` unless that is "". Throws Error if the experiment does not train on images.
std::vector<ComponentRow> bench_components(const BenchContext& context, const std::string& csv);

}  // namespace ringtrain
