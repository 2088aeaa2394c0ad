#include "train/evaluator.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"

namespace ringtrain {
namespace {

// The totals of an evaluation begin with three counts: correct, correct5 and targets. The losses of the passes follow
// from this place on.
constexpr std::int64_t first_loss = 3;

// Returns whether this rank evaluates any rows of the validation batch. Parameter servers do not. In `ringtrain
// evaluate`, running text may be divided among fewer ranks than there are.
bool has_rows(const RunPlan& plan, int rank) {
  const int worker = rank - first_worker(plan);
  return worker >= 0 && for_rank(plan, plan.validation_loader, worker).first_row < plan.validation_loader.global_batch;
}

}  // namespace

Evaluator::Evaluator(const RunPlan& plan, std::shared_ptr<const Dataset> validation, Backend& backend,
                     Communicator& communicator, Watchdog& watchdog, StageRanks* stages)
    : plan_(plan),
      part_(part_of(plan, communicator.rank())),
      communicator_(communicator),
      watchdog_(watchdog),
      program_(compile_part(plan, part_, backend, PassMode::inference, plan.batch.micro_batch)),
      order_(make_pass_order(stages, *program_, plan.experiment.parallel.schedule, 1)),
      has_rows_(has_rows(plan, communicator.rank())),
      loader_plan_(for_rank(plan, plan.validation_loader, has_rows_ ? communicator.rank() - first_worker(plan) : 0)),
      loader_(std::move(validation), loader_plan_),
      pinned_(backend, loader_.ring()) {
  program_->allocate();
  if (plan.carries_state)
    carried_state_.resize(static_cast<std::size_t>(plan.batch.rows_per_rank * part_.graph.state_size()));
}

std::optional<Evaluation> Evaluator::run(const Vector& weights, std::int64_t step, const AfterPass& after_pass,
                                         const WantsToLeave& wants_to_leave) {
  const double begin = now_seconds();
  const std::int64_t steps = steps_per_epoch(plan_.validation, loader_plan_);
  const std::int64_t passes = steps * plan_.batch.accumulation;
  const std::int64_t state_of_pass = plan_.batch.micro_batch * part_.graph.state_size();
  program_->set_weights(weights);
  loader_.seek(0, 0);
  // The losses of all ranks' passes are added in the order of the samples. With the same micro-batch, the sum therefore
  // does not depend on the number of ranks.
  std::vector<double> totals(
      static_cast<std::size_t>(first_loss + steps * loader_plan_.global_batch / loader_plan_.micro_batch));
  LossSums counts;
  Leaving leaving(communicator_, wants_to_leave);
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    watchdog_.enter(step, Phase::evaluation);
    watchdog_.alive();
    if (leaving.agreed()) return std::nullopt;
    if (!has_rows_) continue;
    const MicroBatch& batch = loader_.next();
    if (batch.valid_rows == 0) continue;
    PassContext context;
    if (plan_.carries_state) {
      context.state = carried_state_.data() + batch.micro_step * state_of_pass;
      if (batch.resets_state) std::fill_n(context.state, state_of_pass, 0.0f);
    }
    order_->forward(
        [&] {
          watchdog_.enter(step, Phase::evaluation);
          const LossSums of_pass = program_->run({batch.inputs.data(), batch.targets.data()}, context);
          totals[static_cast<std::size_t>(first_loss + (batch.offset + batch.first_row) / loader_plan_.micro_batch)] +=
              of_pass.loss;
          counts += of_pass;
        },
        [&] { watchdog_.enter(step, Phase::stage_wait); });
    if (after_pass) after_pass(batch, *program_);
  }
  leaving.finish();
  totals[0] = static_cast<double>(counts.correct);
  totals[1] = static_cast<double>(counts.correct5);
  totals[2] = static_cast<double>(counts.targets);
  communicator_.sum(std::span<double>(totals));
  const double loss = std::accumulate(totals.begin() + first_loss, totals.end(), 0.0), counted = totals[2];
  if (counted == 0)
    throw Error(cat("every target of the validation set ", plan_.validation.prefix,
                    " is masked, so there is no loss to average"),
                cat("check it: bin/ringtrain-data verify ", plan_.validation.prefix));
  const std::optional<double> accuracy5 = plan_.graph.has_images() ? std::optional(totals[1] / counted) : std::nullopt;
  return Evaluation{loss / counted, totals[0] / counted, accuracy5, static_cast<std::int64_t>(counted),
                    now_seconds() - begin};
}

}  // namespace ringtrain
