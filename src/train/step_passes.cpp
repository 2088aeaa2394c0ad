#include "train/step_passes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/random.h"

namespace ringtrain {
namespace {

using Pieces = std::vector<std::span<const std::byte>>;
Pieces with(Pieces pieces, const PageVector<float>& values) {
  if (!values.empty()) pieces.push_back(pages_of(values));
  return pieces;
}

}  // namespace

StepPasses::StepPasses(const RunPlan& plan, const ModelPart& part, Backend& backend, Communicator& communicator,
                       StageRanks* stages, BatchInput& input)
    : plan_(plan),
      part_(part),
      input_(input),
      group_ranks_(plan.batch.span > 1 ? communicator.share_groups(static_cast<int>(plan.batch.span)) : nullptr),
      program_(compile_part(plan, part, backend, PassMode::training, plan.batch.micro_batch)),
      order_(make_pass_order(stages, *program_, plan.experiment.parallel.schedule, part.slots)),
      carried_state_(plan.carries_state ? static_cast<std::size_t>(plan.batch.rows_per_rank * part.graph.state_size())
                                        : 0),
      pinned_(backend, with(input.ring(), carried_state_)),
      dropout_key_(random_key(plan.experiment.seed, RandomPurpose::dropout)) {
  program_->allocate();
}

void StepPasses::seek(const Position& position, std::int64_t batch) {
  input_.seek(position.epoch, position.offset, batch);
  staged_.reset();
  staged_of_step_ = 0;
  is_ahead_ = false;
}

void StepPasses::run(const PassStep& step, bool reads_on, Synchronizer& sums, StepClock& clock,
                     const std::function<void(std::int64_t)>& backward) {
  order_->run(step.batch.accumulation, {.input =
                                            [&](std::int64_t) {
                                              if (!is_ahead_) get_input(step, sums, clock);
                                            },
                                        .forward =
                                            [&](std::int64_t) {
                                              if (!std::exchange(is_ahead_, false)) forward(step, clock);
                                            },
                                        .backward =
                                            [&](std::int64_t micro_step) {
                                              clock.time(Phase::backward, [&] { backward(micro_step); });
                                              // A device computes during this read.
                                              if (!staged_ && (staged_of_step_ < step.batch.accumulation || reads_on))
                                                clock.time(Phase::input, [&] { stage_next(); });
                                            },
                                        .waits = [&] { clock.enter(Phase::stage_wait); }});
  staged_of_step_ = staged_ ? 1 : 0;
  program_->close_sums();
}

void StepPasses::run_ahead(const PassStep& next, Synchronizer& sums, StepClock& clock) {
  get_input(next, sums, clock);
  forward(next, clock);
  is_ahead_ = true;
}

void StepPasses::stage_next() {
  staged_ = input_.next();
  ++staged_of_step_;
  if (staged_->targets.empty())
    program_->stage_again();
  else
    program_->stage({staged_->inputs.data(), staged_->targets.data()});
}

void StepPasses::get_input(const PassStep& step, Synchronizer& sums, StepClock& clock) {
  if (!staged_) clock.time(Phase::input, [&] { stage_next(); });
  if (staged_->micro_step > 0) return;
  clock.time(Phase::communication, [&] { targets_ = targets_of(*staged_, step, sums); });
}

void StepPasses::forward(const PassStep& step, StepClock& clock) {
  clock.time(Phase::forward, [&] { program_->forward(context(*staged_, step)); });
  staged_.reset();
}

// Returns the number of counted targets in the global batch, or in this rank's part of it if the rank is alone. The
// gradient is divided by this number already in the backward pass, so that the reduction over the ranks is a plain sum.
// Without masking every target counts, so the ranks need not exchange anything.
std::int64_t StepPasses::targets_of(const MicroBatch& first, const PassStep& step, Synchronizer& sums) const {
  if (step.is_alone) return std::max<std::int64_t>(1, first.step_targets);
  if (!plan_.train_loader.mask_blanks) return step.samples * plan_.graph.sequence();
  double count = part_.is_last() ? static_cast<double>(first.step_targets) : 0;
  sums.agree(std::span<double>(&count, 1));
  return std::max<std::int64_t>(1, std::llround(count));
}

PassContext StepPasses::context(const MicroBatch& batch, const PassStep& step) {
  PassContext context;
  context.gradient_scale = step.loss_scale / static_cast<float>(targets_);
  context.statistic_scale =
      1.0f / static_cast<float>(step.batch.workers * step.batch.span / (step.is_alone ? step.batch.ranks : 1));
  context.group_ranks = group_ranks_.get();
  context.dropout_key = dropout_key_;
  context.step = step.position.step;
  context.first_row = batch.first_row;
  if (plan_.carries_state) {
    const std::int64_t rows = plan_.batch.micro_batch * part_.graph.state_size();
    context.state = carried_state_.data() + batch.micro_step * rows;
    if (batch.resets_state) std::fill_n(context.state, rows, 0.0f);
  }
  return context;
}

}  // namespace ringtrain
