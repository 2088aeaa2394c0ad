// Validation: every sample exactly once, integer counts and double sums, divided once.
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
#include "parallel/pass_order.h"
#include "parallel/stage_ranks.h"
#include "run/plan.h"
#include "train/leaving.h"

namespace ringtrain {

struct Evaluation {
  double loss = 0;                  // mean over the counted targets, natural logarithm
  double accuracy = 0;              // share of them predicted right
  std::optional<double> accuracy5;  // share of them among the five likeliest; of images
  std::int64_t targets = 0;
  double seconds = 0;
};

class Evaluator {
 public:
  // Takes the memory of the inference program; reads no sample before the first evaluation. `validation`: of
  // plan.validation.
  Evaluator(const RunPlan& plan, std::shared_ptr<const Dataset> validation, Backend& backend,
            Communicator& communicator, Watchdog& watchdog, StageRanks* stages = nullptr);
  using AfterPass = std::function<void(const MicroBatch&, const Program&)>;
  // Whether this rank would rather leave; asked before each pass (train/leaving.h). Empty (on all ranks): to the end.
  using WantsToLeave = Leaving::Wish;
  // Collective. Batch norm normalises by the statistics that stand in `weights`. The result has the same bits on all
  // ranks; nothing when a rank wanted to leave. `after_pass` sees this rank's passes in order.
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
