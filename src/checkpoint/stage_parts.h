// Joins the parts of a vector that the stages of a pipeline hold, and splits it again. Checkpoints hold whole models.
#pragma once

#include <span>
#include <vector>

#include "parallel/stage_ranks.h"
#include "run/plan.h"

namespace ringtrain {

// The elements of a flat vector that a function copies. `all` includes batch norm's statistics, which lie after the
// trained tensors. `trained` leaves them out.
enum class Elements { all, trained };

// Collective. `mine` is this rank's part. The result has the layout of plan.parameters. It is empty on all ranks but 0.
std::vector<float> gather_parts(const RunPlan& plan, StageRanks& ranks, std::span<const float> mine, Elements elements);
// Collective. Sends the parts of `whole`, which is read on rank 0 only, to the ranks of every replica. It is the
// reverse of gather_parts().
void scatter_parts(const RunPlan& plan, StageRanks& ranks, std::span<const float> whole, std::span<float> mine,
                   Elements elements);

// Collective. Gather and scatter, in the same way, the hidden state that an LSTM carries from one batch to the next.
// `mine` is [rows of a replica, layers of the part, (h, c), hidden]. `whole` is [global rows, all layers, (h, c),
// hidden].
std::vector<float> gather_state(const RunPlan& plan, StageRanks& ranks, std::span<const float> mine);
void scatter_state(const RunPlan& plan, StageRanks& ranks, std::span<const float> whole, std::span<float> mine);

}  // namespace ringtrain
