// The parts of an array that the ranks of a pipeline hold. Checkpoints hold whole models, so the parts are joined when
// a checkpoint is made, and split again when it is loaded. All functions are collective over the ranks of the pipeline.
#pragma once

#include <span>
#include <vector>

#include "parallel/pipeline.h"
#include "run/plan.h"

namespace ringtrain {

// The elements of a flat vector that a function copies. `all` includes batch norm's statistics, which lie after the
// trained tensors. `trained` leaves them out.
enum class Elements { all, trained };

// The whole vector has the layout of plan.parameters, and a part has that of the stage's parameters. join_vector()
// returns the whole vector on rank 0, and nothing on other ranks. split_vector() reads `whole` on rank 0 only, and
// gives its parts to the ranks of every replica. The padding of a part becomes zero.
std::vector<float> join_vector(const RunPlan& plan, Elements elements, StageRanks& ranks, std::span<const float> mine);
void split_vector(const RunPlan& plan, Elements elements, StageRanks& ranks, std::span<const float> whole,
                  std::span<float> mine);

// The same for the hidden state that an LSTM carries from one batch to the next. A part is [rows of a replica, layers
// of the stage, (h, c), hidden], and the whole state is [global rows, all layers, (h, c), hidden].
std::vector<float> join_carried_state(const RunPlan& plan, StageRanks& ranks, std::span<const float> mine);
void split_carried_state(const RunPlan& plan, StageRanks& ranks, std::span<const float> whole, std::span<float> mine);

}  // namespace ringtrain
