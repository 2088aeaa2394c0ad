// Validation. An evaluation counts every validation sample exactly once. It adds integer counts and double losses, and
// divides them once at the end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "cluster/communicator.h"
#include "cluster/watchdog.h"
#include "data/loader.h"
#include "parallel/pipeline.h"
#include "parallel/requests.h"
#include "run/evaluation.h"
#include "run/plan.h"
#include "run/split.h"

namespace ringtrain {

class Evaluator {
 public:
  // Allocates the memory of the inference program. No sample is read before the first evaluation. `validation` is the
  // data set of plan.validation.
  Evaluator(const RunPlan& plan, std::shared_ptr<const Dataset> validation, Backend& backend,
            Communicator& communicator, Watchdog& watchdog, StageRanks* stages = nullptr);
  using AfterPass = std::function<void(const MicroBatch&, const Program&)>;
  // Returns whether this rank wants to leave. The evaluator asks before each pass (parallel/requests.h). If the
  // function is empty (on all ranks), every evaluation runs to its end.
  using WantsToLeave = Leaving::Wish;
  // Collective. Batch norm normalises with the statistics in `weights`. The result has the same bits on all ranks. It
  // is empty if a rank wanted to leave. `after_pass` is called after each pass of this rank, in order.
  std::optional<Evaluation> run(const Vector& weights, std::int64_t step, const AfterPass& after_pass,
                                const WantsToLeave& wants_to_leave);

 private:
  const RunPlan& plan_;
  ModelPart part_;
  Communicator& communicator_;
  Watchdog& watchdog_;
  std::unique_ptr<Program> program_;
  std::unique_ptr<PassOrder> order_;
  bool has_rows_;
  LoaderPlan loader_plan_;
  Loader loader_;
  std::vector<float> carried_state_;
  Pinned pinned_;
};

}  // namespace ringtrain
