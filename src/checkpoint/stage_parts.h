// A pipeline's parts of a vector put together on rank 0, and taken apart: checkpoints hold whole models.
#pragma once

#include <span>
#include <vector>

#include "parallel/stage_ranks.h"
#include "run/plan.h"

namespace ringtrain {

// Elements of a flat vector: with the statistics behind the trained tensors, or without.
enum class Elements { all, trained };

// Collective. `mine`: of this rank's part. The result is laid out as plan.parameters; empty on other ranks than 0.
std::vector<float> gather_parts(const RunPlan& plan, StageRanks& ranks, std::span<const float> mine, Elements elements);
// The reverse, for every replica: `whole` on rank 0.
void scatter_parts(const RunPlan& plan, StageRanks& ranks, std::span<const float> whole, std::span<float> mine,
                   Elements elements);

// Carried state: `mine` [rows of a replica, layers of the part, (h, c), hidden]; whole [global rows, all layers, ...].
std::vector<float> gather_state(const RunPlan& plan, StageRanks& ranks, std::span<const float> mine);
void scatter_state(const RunPlan& plan, StageRanks& ranks, std::span<const float> whole, std::span<float> mine);

}  // namespace ringtrain
