// Finds the split size and the cuts with which a pipeline is fastest. Every candidate trains a few steps on the job's
// ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/rank_group.h"
#include "run/machine.h"
#include "run/plan.h"

namespace ringtrain {

struct PipelineTrial {
  std::int64_t micro_batch = 0;    // the split size
  std::int64_t micro_batches = 0;  // number of micro-batches in a step of a replica
  std::vector<std::string> cuts;   // the first layer of each stage after the first
  double seconds = 0;              // time of a step: mean over the ranks, median over the steps
  double samples_per_second = 0;
  double bubble_seconds = 0;    // part of `seconds`, mean over the ranks: waiting for another stage
  double boundary_seconds = 0;  // part of `seconds`: transfers at the cuts
};

// Returns at most `most` of the possible micro-batches, the largest ones. Each is about twice the one before.
std::vector<std::int64_t> micro_batches_to_try(const BatchShares& shares, std::size_t most);

// Measures for about `seconds` in all, with fresh weights and at least 2 steps per candidate, unless the experiment has
// fewer. The first of several steps is not counted. If `only_sizes` is true, only the experiment's cuts are tried, with
// at most 6 sizes. `validation` is the validation set (null: none). It matters because it takes memory. Candidates that
// do not fit into memory are left out. Collective over the group. All ranks get the same result. Throws Error if the
// experiment is not a pipeline, or if no candidate fits.
std::vector<PipelineTrial> measure_pipelines(const Experiment& experiment, const DatasetIndex& train,
                                             const DatasetIndex* validation, Machine& machine, const RankGroup& group,
                                             double seconds, bool only_sizes);

const PipelineTrial& fastest(const std::vector<PipelineTrial>& trials);
// Returns a row for each trial. results/plot_bench.py draws the throughput against the split size, with a line for each
// set of cuts.
std::string pipeline_csv(const Experiment& experiment, int ranks, const std::vector<PipelineTrial>& trials);

}  // namespace ringtrain
