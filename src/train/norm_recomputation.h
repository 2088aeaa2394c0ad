// Batch norm's statistics measured anew on training samples, for an evaluation.
//
// Running averages lag behind the weights, the more the fewer and larger the steps are (Goyal et al. 2017), and belong
// to other weights where averaged ones are evaluated. Here the weights that are evaluated run over N training samples
// in training's groups (batch.worker), and mean and variance over all of them follow from the groups' moments, as in
// Wu and Johnson 2021, "Rethinking 'Batch' in BatchNorm", section 3:
//
//   mean = average of the groups' means        variance = average of their mean squares - mean^2
//
// The variance is that of the N samples (divided by their number): the groups' means differ, and that counts, too.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "cluster/communicator.h"
#include "cluster/watchdog.h"
#include "data/loader.h"
#include "run/plan.h"
#include "train/leaving.h"

namespace ringtrain {

class NormRecomputation {
 public:
  // Takes the memory of the program that measures; reads no sample before the first measurement. `train`: of
  // plan.train.
  NormRecomputation(const RunPlan& plan, std::shared_ptr<const Dataset> train, Backend& backend,
                    Communicator& communicator, Watchdog& watchdog);

  // Collective. Measures what these weights [parameters.size()] make of the samples; their own statistics do not
  // matter and stay. The ranks share the passes out; the values are the same bits on all of them, and on other numbers
  // of ranks the same but for roundings (communication.order: fixed: the same bits). `wants_to_leave` as in
  // Evaluator::run(). False: a rank wanted to leave, and values() are as before.
  using WantsToLeave = Leaving::Wish;
  bool measure(const Vector& weights, std::int64_t step, const WantsToLeave& wants_to_leave);

  // Of the newest measurement, in the places of the statistics behind the trained elements; zeros before the first.
  std::span<const float> values() const { return values_; }
  // Swaps them with those that stand in `weights`. The second call puts everything back as it was.
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
