// Joins the parts of a vector that the stages of a pipeline hold, and splits it again. Checkpoints hold whole models.
#pragma once

#include <span>
#include <vector>

#include "parallel/stage_ranks.h"
#include "run/plan.h"

namespace ringtrain {

// The elements of a flat vector that a function copies: with the statistics after the trained tensors, or without them.
enum class Elements { all, trained };

// Collective. `mine` is this rank's part. The result has the layout of plan.parameters. It is empty on all ranks but 0.
std::vector<float> gather_parts(const RunPlan& plan, StageRanks& ranks, std::span<const float> mine, Elements elements);
// The reverse of gather_parts(), for every replica. `whole` is read on rank 0 only.
void scatter_parts(const RunPlan& plan, StageRanks& ranks, std::span<const float> whole, std::span<float> mine,
                   Elements elements);

// The same for the carried state. `mine` is [rows of a replica, layers of the part, (h, c), hidden]. `whole` is [global
// rows, all layers, ...].
std::vector<float> gather_state(const RunPlan& plan, StageRanks& ranks, std::span<const float> mine);
void scatter_state(const RunPlan& plan, StageRanks& ranks, std::span<const float> whole, std::span<float> mine);

}  // namespace ringtrain
