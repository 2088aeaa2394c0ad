#include "train/evaluation.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/rounding.h"
#include "data/row_plan.h"
#include "run/fixed_order.h"

namespace ringtrain {
namespace {

// Lets the ranks agree, between passes, that one of them wants to leave. The ranks agree by a sum over all ranks. The
// sum is started before one pass, and its result is used before the next pass. No rank thus waits for the sum, and all
// ranks leave at the same pass. All ranks must call agreed() equally often.
class Leaving {
 public:
  Leaving(Communicator& communicator, Watchdog& watchdog, std::int64_t step, const WantsToLeave& wish)
      : communicator_(communicator), watchdog_(watchdog), step_(step), wish_(wish) {}

  // Call this before each pass. It tells the watchdog that the rank is alive. Returns whether a rank wanted to leave
  // before the previous pass.
  bool agreed() {
    watchdog_.enter(step_, Phase::evaluation);
    watchdog_.alive();
    if (!wish_) return false;
    finish();
    if (leavers_ > 0) return true;
    leavers_ = wish_() ? 1 : 0;
    agreement_ = communicator_.start_sum(std::span<double>(&leavers_, 1));
    return false;
  }
  // Call this after the last pass.
  void finish() {
    if (agreement_) agreement_->finish();
    agreement_.reset();
  }

 private:
  Communicator& communicator_;
  Watchdog& watchdog_;
  std::int64_t step_;
  const WantsToLeave& wish_;
  double leavers_ = 0;
  std::unique_ptr<Pending> agreement_;
};

// The totals of an evaluation begin with three counts: correct, correct5 and targets. The losses of the passes follow
// from this place on.
constexpr std::int64_t first_loss = 3;

// Returns whether this rank evaluates any rows of the validation batch. Parameter servers do not. In `ringtrain
// evaluate`, running text may be divided among fewer ranks than there are.
bool has_rows(const RunPlan& plan, int rank) {
  const int worker = rank - first_worker(plan);
  return worker >= 0 && for_rank(plan, plan.validation_loader, worker).first_row < plan.validation_loader.global_batch;
}

// One sum for each value of a statistic.
struct Sums {
  std::vector<double> values = {};
  Sums& operator+=(const Sums& other) {
    std::ranges::transform(values, other.values, values.begin(), std::plus());
    return *this;
  }
};

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
  Leaving leaving(communicator_, watchdog_, step, wants_to_leave);
  for (std::int64_t pass = 0; pass < passes; ++pass) {
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

NormRecomputation::NormRecomputation(const RunPlan& plan, std::shared_ptr<const Dataset> train, Backend& backend,
                                     Communicator& communicator, Watchdog& watchdog)
    : plan_(plan),
      backend_(backend),
      communicator_(communicator),
      watchdog_(watchdog),
      program_(backend.compile(plan.graph, plan.norm_loader.micro_batch, plan.precision, PassMode::statistics,
                               plan.norm_group)),
      loader_(std::move(train), plan.norm_loader),
      pinned_(backend, loader_.ring()),
      values_(static_cast<std::size_t>(plan.parameters.size() - plan.parameters.trained())) {
  program_->allocate();
}

bool NormRecomputation::measure(const Vector& weights, std::int64_t step, const WantsToLeave& wants_to_leave) {
  const std::int64_t images = plan_.norm_loader.micro_batch, passes = plan_.norm_samples / images;
  const std::int64_t ranks = communicator_.size(), rank = communicator_.rank();
  std::int64_t begin = passes * rank / ranks, end = passes * (rank + 1) / ranks, most = divide_up(passes, ranks);
  if (has_fixed_order(plan_.experiment)) {  // each rank has 2^k passes; the last ranks may have fewer
    most = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(most)));
    begin = std::min(passes, most * rank);
    end = std::min(passes, most * (rank + 1));
  }
  TreeSum<Sums> tree;
  Leaving leaving(communicator_, watchdog_, step, wants_to_leave);
  program_->set_weights(weights);
  if (begin < end) loader_.seek(0, begin * images);
  for (std::int64_t pass = begin; pass < begin + most; ++pass) {
    if (leaving.agreed()) return false;
    if (pass >= end) continue;
    const MicroBatch& batch = loader_.next();
    program_->run({batch.inputs.data(), batch.targets.data()});
    const std::vector<float> measured = program_->statistics();
    tree.add({std::vector<double>(measured.begin(), measured.end())});
  }
  leaving.finish();
  std::vector<double> sums = tree.total().values;
  sums.resize(values_.size());
  communicator_.sum(std::span<double>(sums));

  const double groups = static_cast<double>(plan_.norm_samples / plan_.norm_group);
  const auto place = [&](const std::string& name) {
    return static_cast<std::size_t>(plan_.parameters.find(name).offset - plan_.parameters.trained());
  };
  for (const Node& node : plan_.graph.nodes()) {
    const auto* norm = std::get_if<Norm>(&node.operation);
    if (norm == nullptr || norm->by_sample()) continue;
    const std::size_t means = place(norm->running_mean), variances = place(norm->running_var);
    for (std::size_t c = 0; c < static_cast<std::size_t>(norm->channels); ++c) {
      const double mean = sums[means + c] / groups, square = sums[variances + c] / groups;
      values_[means + c] = static_cast<float>(mean);
      const double variance = square - mean * mean;
      values_[variances + c] = static_cast<float>(variance < 0 ? 0 : variance);  // NaN stays
    }
  }
  return true;
}

void NormRecomputation::exchange(Vector& weights) {
  std::vector<float> own(values_.size());
  backend_.copy_to_host(weights, plan_.parameters.trained(), own);
  backend_.copy_from_host(values_, weights, plan_.parameters.trained());
  values_ = std::move(own);
}

}  // namespace ringtrain
