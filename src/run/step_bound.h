// The least time of a training step on the machine that a run uses. Each step's record says which share of its time
// this is: 1 would mean that the machine only multiplied matrices (CPUs), or that each command of a GPU's program took
// no longer than its products or its memory traffic need.
#pragma once

#include <cstdint>
#include <string>

#include "run/machine.h"
#include "run/plan.h"
#include "run/split.h"

namespace ringtrain {

// One rank's part of the bound. Its members are added over the ranks.
struct RankBound {
  double ranks = 1;  // 0: a server, which computes no gradients
  double flops_per_sample = 0, bytes_per_sample = 0, flops_per_second = 0, bytes_per_second = 0;
  double seconds_per_sample = 0, seconds_per_update = 0;
};

// What the bound consists of. The ranks are those that compute gradients; servers with ranks of their own are not among
// them. A pipeline's ranks compute different parts of the model, so the seconds are means over the ranks.
struct StepBound {
  std::int64_t ranks = 0;         // 0: not known
  std::int64_t replicas = 1;      // copies of the model that share the samples of a step
  double flops_per_sample = 0;    // of the whole model, forward and backward pass
  double bytes_per_sample = 0;    // GPUs: memory traffic of the whole model
  double flops_per_second = 0;    // of one rank
  double bytes_per_second = 0;    // of one rank's GPU
  std::string rates;              // "measured at the start", "of GPUs of this name" or "estimate"
  double seconds_per_sample = 0;  // for a rank's part of one sample
  double seconds_per_update = 0;  // GPUs: for the refresh of the program's own weights
  // Returns the least seconds of a step with this many samples, on all ranks together.
  double step_seconds(std::int64_t samples) const {
    return static_cast<double>(samples) / static_cast<double>(replicas) * seconds_per_sample + seconds_per_update;
  }
};

// Returns the bound of ranks with this sum, which share the samples of a step as `replicas` copies of the model.
StepBound bound_of_sum(const RankBound& sum, std::int64_t replicas);

// Returns the bound. All ranks get it. On CPUs, the ranks measure the rate of their cores at the same time, in about
// 15 ms. `program` is the rank's training program. Collective.
StepBound measure_step_bound(const RunPlan& plan, const ModelPart& part, const Program& program,
                             const Machine& machine);

// Returns the line of `plan` for a GPU: the least time of a step. "" for a pipeline.
std::string describe_least_time(const RunPlan& plan, const Program& program, const Machine& machine);

}  // namespace ringtrain
