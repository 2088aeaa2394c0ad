#include "train/step_passes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/random.h"
#include "run/fixed_order.h"

namespace ringtrain {
namespace {

using Pieces = std::vector<std::span<const std::byte>>;
Pieces with(Pieces pieces, const PageVector<float>& values) {
  if (!values.empty()) pieces.push_back(pages_of(values));
  return pieces;
}

}  // namespace

StepPasses::StepPasses(const RunPlan& plan, const ModelPart& part, Backend& backend, Communicator& communicator,
                       StageRanks* stages, BatchInput& input, Vector& gradients, SmallBatchNorms* small_norms)
    : plan_(plan),
      part_(part),
      input_(&input),
      norm_team_(plan.batch.span > 1 ? communicator.make_norm_team(static_cast<int>(plan.batch.span)) : nullptr),
      program_(compile_part(plan, part, backend, PassMode::training, plan.batch.micro_batch)),
      order_(make_pass_order(stages, *program_, plan.experiment.parallel.schedule, part.slots)),
      sum_(plan, backend, gradients, small_norms),
      carried_state_(plan.carries_state ? static_cast<std::size_t>(plan.batch.rows_per_rank * part.graph.state_size())
                                        : 0),
      pinned_(backend, with(input.ring(), carried_state_)),
      dropout_key_(random_key(plan.experiment.seed, RandomPurpose::dropout)) {
  program_->allocate();
}

// A pass that has been staged or has begun for another position is done, and its sums are dropped.
void StepPasses::seek(const Position& position, std::int64_t batch) {
  PassContext unused;
  unused.norm_team = norm_team_.get();
  if (staged_) order_->forward([&] { program_->forward(unused); }, [] {});
  if (staged_ || is_ahead_) program_->take_sums();
  staged_.reset();
  staged_of_step_ = 0;
  is_ahead_ = false;
  input_->seek(position.epoch, position.offset, batch);
}

void StepPasses::run(const PassStep& step, bool reads_on, const BackwardHooks& hooks, Synchronizer& sums,
                     StepClock& clock) {
  PassCalls calls;
  // If the first pass of this step has begun ahead, its input and its forward pass are done.
  calls.input = [&](std::int64_t) {
    if (!is_ahead_) get_input(step, sums, clock);
  };
  calls.forward = [&](std::int64_t) {
    if (!std::exchange(is_ahead_, false)) forward(step, clock);
  };
  calls.backward = [&](std::int64_t micro_step) {
    clock.time(Phase::backward, [&] { sum_.backward(*program_, micro_step, hooks); });
    const bool is_more = staged_of_step_ < step.batch.accumulation || reads_on;
    // A device computes during this read.
    if (!staged_ && is_more) clock.time(Phase::input, [&] { stage_next(); });
  };
  calls.waits = [&] { clock.enter(Phase::stage_wait); };
  order_->run(step.batch.accumulation, calls);
  staged_of_step_ = staged_ ? 1 : 0;
  program_->close_sums();
}

void StepPasses::get_input(const PassStep& step, Synchronizer& sums, StepClock& clock) {
  if (!staged_) clock.time(Phase::input, [&] { stage_next(); });
  if (staged_->micro_step > 0) return;
  clock.time(Phase::communication, [&] { targets_ = targets_of(*staged_, step, sums); });
}

void StepPasses::stage_next() {
  staged_ = input_->next();
  ++staged_of_step_;
  if (staged_->targets.empty())
    program_->stage_again();
  else
    program_->stage({staged_->inputs.data(), staged_->targets.data()});
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

void StepPasses::forward(const PassStep& step, StepClock& clock) {
  clock.time(Phase::forward, [&] { program_->forward(context(*staged_, step)); });
  staged_.reset();
}

PassContext StepPasses::context(const MicroBatch& batch, const PassStep& step) {
  PassContext context;
  context.gradient_scale = step.loss_scale / static_cast<float>(targets_);
  context.statistic_scale =
      1.0f / static_cast<float>(step.batch.workers * step.batch.span / (step.is_alone ? step.batch.ranks : 1));
  context.norm_team = norm_team_.get();
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

void StepPasses::run_ahead(const PassStep& next, Synchronizer& sums, StepClock& clock) {
  get_input(next, sums, clock);
  forward(next, clock);
  is_ahead_ = true;
}

namespace {

// Returns the number of tree levels below a node that has `passes` passes. `passes` must be a power of two.
std::size_t levels_below(std::int64_t passes) {
  return static_cast<std::size_t>(std::countr_zero(static_cast<std::uint64_t>(passes)));
}

}  // namespace

SumOfPasses::SumOfPasses(const RunPlan& plan, Backend& backend, Vector& gradients, SmallBatchNorms* small_norms)
    : backend_(backend),
      gradients_(gradients),
      fixed_order_(has_fixed_order(plan.experiment)),
      bucket_elements_(bucket_elements(plan, backend.on_device())),
      small_norms_(small_norms),
      batch_(plan.batch) {
  if (fixed_order_) small_level_ = levels_below(plan.batch.passes_of_small_batch());
  for (std::int64_t level = 0; level < waiting_nodes(plan); ++level)
    levels_.push_back(backend.make_vector(gradients.size()));
}

BeforeBucket SumOfPasses::begin(const BatchPlan& batch, bool measures) {
  batch_ = batch;
  measures_ = measures;
  losses_ = {};
  if (measures) small_norms_->begin();
  if (fixed_order_) return [this](std::int64_t begin, std::uintptr_t stream) { complete(begin, stream); };
  if (!measures) return {};
  return [this](std::int64_t begin, std::uintptr_t stream) { small_norms_->measure_bucket(gradients_, begin, stream); };
}

void SumOfPasses::backward(Program& program, std::int64_t pass, const BackwardHooks& hooks) {
  const bool last = pass + 1 == batch_.accumulation;
  program.backward(gradients_, !fixed_order_ && pass > 0, last ? hooks : BackwardHooks{});
  if (last) return;
  if (fixed_order_) {
    losses_.add(program.take_sums());
    keep_node(pass);
  } else if (measures_ && (pass + 1) % batch_.passes_of_small_batch() == 0) {
    small_norms_->measure(gradients_);
  }
}

LossSums SumOfPasses::take_sums(Program& program) {
  if (!fixed_order_) return program.take_sums();
  TreeSum<LossSums> all = losses_;
  all.add(program.take_sums());
  return all.total();
}

// The binary number of the pass ends with `level` ones. The pass therefore completes a node on every level up to
// `level`. The largest of these nodes waits for its neighbour.
void SumOfPasses::keep_node(std::int64_t pass) {
  const auto level = static_cast<std::size_t>(std::countr_one(static_cast<std::uint64_t>(pass)));
  const ElementRange all{0, gradients_.size()};
  const std::size_t before = std::min(level, small_level_);
  fold(0, before, all, 0);
  if (measures_ && level >= small_level_) small_norms_->measure(gradients_);
  fold(before, level, all, 0);
  backend_.copy(gradients_, *levels_[level]);
}

// After the last pass of a step, every waiting node is the left neighbour of the node that has just been completed.
void SumOfPasses::complete(std::int64_t begin, std::uintptr_t stream) {
  const ElementRange bucket{begin, std::min(begin + bucket_elements_, gradients_.size())};
  const std::size_t root = levels_below(batch_.accumulation);
  fold(0, std::min(root, small_level_), bucket, stream);
  if (measures_) small_norms_->measure_bucket(gradients_, begin, stream);
  fold(std::min(root, small_level_), root, bucket, stream);
}

// Adds the waiting nodes of levels [from_level, to_level) to the gradients.
void SumOfPasses::fold(std::size_t from_level, std::size_t to_level, ElementRange range, std::uintptr_t stream) {
  std::vector<const Vector*> nodes;
  for (std::size_t level = from_level; level < to_level; ++level) nodes.push_back(levels_[level].get());
  if (!nodes.empty()) backend_.add(nodes, range, gradients_, stream);
}

}  // namespace ringtrain
