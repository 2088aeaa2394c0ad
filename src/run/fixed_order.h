// Gradients that are added in one binary tree over the passes of all ranks (communication.order: fixed), so that the
// bits of a run do not depend on the number of ranks. train/gradient_passes.h adds them.
#pragma once

#include <cstdint>
#include <string>

#include "backend/backend.h"
#include "config/batch_plan.h"
#include "config/experiment.h"
#include "run/plan.h"

namespace ringtrain {

inline bool has_fixed_order(const Experiment& experiment) {
  return experiment.communication.order == "fixed";
}
// Samples of a pass where the experiment says it: batch.micro, or batch.worker in a fixed order. 0: it is chosen.
std::int64_t stated_micro_batch(const Experiment& experiment);

// Throws Error where the passes of the ranks are no binary tree.
void check_fixed_order(const RunPlan& plan);

// Vectors of gradients that wait for their neighbours, of a rank: log2(passes of a step). 0: no fixed order.
std::int64_t waiting_nodes(const RunPlan& plan);

// "8 passes of 32 samples in a binary tree, ...", and what it costs a step of one rank, which is measured here: the
// vectors are made and added. "": no fixed order.
std::string describe_fixed_order(const RunPlan& plan, Backend& backend, bool measures);

}  // namespace ringtrain
