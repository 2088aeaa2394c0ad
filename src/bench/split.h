// Which split size and which cuts make a pipeline fastest: every candidate trains a few steps on the job's ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/rank_group.h"
#include "run/machine.h"
#include "run/plan.h"

namespace ringtrain {

struct SplitTrial {
  std::int64_t micro_batch = 0;    // the split size
  std::int64_t micro_batches = 0;  // of it, in a step of a replica
  std::vector<std::string> cuts;   // the first layer of each stage after the first
  double seconds = 0;              // of a step, the median; the slowest rank's
  double samples_per_second = 0;
  double bubble_seconds = 0;    // of it, the mean over the ranks: waiting for another stage
  double boundary_seconds = 0;  // and handing over
};

// Split sizes to try: multiples of what must stay whole (batch.worker, with batch norm) that divide a replica's rows,
// about twice as large from one to the next, up to `most`.
std::vector<std::int64_t> split_sizes(const RunPlan& plan, std::size_t most = 10);

// The plan's own cuts, and each of them moved by one layer either way.
std::vector<std::vector<std::string>> cuts_nearby(const RunPlan& plan);

// Collective over the group. For about `seconds` in all, at least 2 steps of each, the first one not counted; fresh
// weights each time. With `only_sizes` the experiment's cuts are kept. The same result on all ranks. Throws Error where
// the experiment is no pipeline.
std::vector<SplitTrial> measure_splits(const Experiment& experiment, const DatasetIndex& train, Machine& machine,
                                       const RankGroup& group, double seconds, bool only_sizes);

const SplitTrial& fastest(const std::vector<SplitTrial>& trials);
// A row for each trial; results/plot_bench.py draws throughput against the split size, a line for each way to cut.
std::string split_csv(const Experiment& experiment, int ranks, const std::vector<SplitTrial>& trials);

}  // namespace ringtrain
