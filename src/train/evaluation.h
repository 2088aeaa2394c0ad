// The passes between steps that measure and do not train: validation, and batch norm's statistics for it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "cluster/communicator.h"
#include "cluster/watchdog.h"
#include "data/loader.h"
#include "parallel/pipeline.h"
#include "run/plan.h"
#include "run/reports.h"
#include "run/split.h"

namespace ringtrain {

// Returns whether this rank wants to leave. It is asked before each pass. All ranks leave at the same pass if one of
// them wants to. If the function is empty (on all ranks), no rank is asked, and the passes run to their end.
using WantsToLeave = std::function<bool()>;

// Validation. An evaluation counts every validation sample exactly once. It adds integer counts and double losses, and
// divides them once at the end.
class Evaluator {
 public:
  // Allocates the memory of the inference program. No sample is read before the first evaluation. `validation` is the
  // data set of plan.validation.
  Evaluator(const RunPlan& plan, std::shared_ptr<const Dataset> validation, Backend& backend,
            Communicator& communicator, Watchdog& watchdog, StageRanks* stages = nullptr);
  using AfterPass = std::function<void(const MicroBatch&, const Program&)>;
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

// Computes batch norm's statistics again from training samples, for an evaluation.
//
// Running averages lag behind the weights. The lag is larger if a run has few and large steps (Goyal et al. 2017).
// Running averages also do not fit averaged weights, because they belong to other weights. Here the weights that are
// evaluated run over N training samples, in the groups that training uses (batch.worker). The mean and the variance
// over all N samples follow from the moments of the groups (Wu and Johnson 2021, "Rethinking 'Batch' in BatchNorm",
// section 3):
//
//   mean = average of the groups' means        variance = average of their mean squares - mean^2
//
// The variance is divided by N. It includes the differences between the means of the groups.
class NormRecomputation {
 public:
  // Allocates the memory of the program that measures. No sample is read before the first measurement. `train` is the
  // data set of plan.train.
  NormRecomputation(const RunPlan& plan, std::shared_ptr<const Dataset> train, Backend& backend,
                    Communicator& communicator, Watchdog& watchdog);

  // Collective. Measures the statistics that `weights` [parameters.size()] produce on the samples. The statistics
  // inside `weights` are neither used nor changed. The ranks that compute gradients share the passes. The values
  // have the same bits on all ranks. On another number of ranks they differ only by rounding (not at all with
  // communication.order: fixed). `wants_to_leave` works as in Evaluator::run(). Returns false if a rank wanted to
  // leave; values() then stay as before.
  bool measure(const Vector& weights, std::int64_t step, const WantsToLeave& wants_to_leave);

  // Returns the statistics of the newest measurement, in the order in which they follow the trained elements. They are
  // zeros before the first measurement.
  std::span<const float> values() const { return values_; }
  // Swaps values() with the statistics in `weights`. A second call undoes the first.
  void exchange(Vector& weights);

 private:
  const RunPlan& plan_;
  Backend& backend_;
  Communicator& communicator_;
  Watchdog& watchdog_;
  std::unique_ptr<Program> program_;
  Loader loader_;
  Pinned pinned_;
  std::vector<float> values_;
};

}  // namespace ringtrain
