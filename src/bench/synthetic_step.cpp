#include "bench/synthetic_step.h"

#include <algorithm>

#include "base/clock.h"
#include "base/random.h"
#include "optim/batch_rules.h"
#include "run/norm_plan.h"

namespace ringtrain {

namespace {

constexpr std::size_t watermark_points = 64;

}  // namespace

SyntheticPasses::SyntheticPasses(const RunPlan& plan, Backend& backend)
    : plan_(plan),
      backend_(backend),
      weights_(backend.make_vector(plan.parameters.size())),
      gradients_(backend.make_vector(plan.parameters.size(), true)) {
  std::vector<float> flat(static_cast<std::size_t>(weights_->size()));
  initialize(plan.parameters, plan.experiment.seed, flat);
  backend_.copy_from_host(flat, *weights_, 0);
  context_.gradient_scale = 1.0f / static_cast<float>(plan.batch.global * plan.graph.sequence());
  context_.statistic_scale = 1.0f / static_cast<float>(plan.batch.workers * plan.batch.span);
  context_.dropout_key = random_key(plan.experiment.seed, RandomPurpose::dropout);
}

void SyntheticPasses::compile(std::int64_t micro_batch) {
  program_.reset();  // frees its memory first
  const std::int64_t group = group_ranks_ ? plan_.norm_group : std::min(plan_.norm_group, micro_batch);
  program_ = backend_.compile(plan_.graph, micro_batch, plan_.precision, PassMode::training, group);
  program_->allocate();
  program_->set_weights(*weights_);
  context_.group_ranks = group_ranks_.get();
  const auto* tokens = std::get_if<TokenInput>(&plan_.graph.nodes().front().operation);
  const int values = tokens != nullptr ? static_cast<int>(tokens->vocabulary) : 256;
  inputs_.resize(static_cast<std::size_t>(micro_batch * plan_.graph.input_bytes()));
  targets_.resize(static_cast<std::size_t>(micro_batch * plan_.graph.sequence()));
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    inputs_[i] = static_cast<std::uint8_t>(static_cast<int>(random_uniform(1, i) * values));
  for (std::size_t i = 0; i < targets_.size(); ++i)
    targets_[i] = static_cast<std::int32_t>(random_uniform(2, i) * static_cast<double>(plan_.graph.classes()));
  state_.assign(static_cast<std::size_t>(plan_.carries_state ? micro_batch * plan_.graph.state_size() : 0), 0.0f);
  context_.state = state_.empty() ? nullptr : state_.data();
}

void SyntheticPasses::forward() {
  program_->stage({inputs_.data(), targets_.data()});
  program_->forward(context_);
}

void SyntheticPasses::forward_alone() {
  forward();
  program_->take_sums();
}

void SyntheticPasses::pass(const BackwardHooks& hooks) {
  forward();
  program_->backward(*gradients_, false, hooks);
  program_->take_sums();
}

SyntheticStep::SyntheticStep(const RunPlan& plan, const Machine& machine)
    : SyntheticPasses(plan, *machine.backend),
      synchronizer_(make_synchronizer(
          plan.experiment.parallel, machine.communicator(), nullptr,
          {gradients_->data(), static_cast<std::size_t>(gradients_->size())}, plan.parameters.trained(),
          bucket_elements(plan.experiment.communication, backend_.on_device(), plan.batch.ranks),
          backend_.on_device())),
      optimizer_(optimizer_of(plan.experiment, plan.schedule), plan.parameters, backend_, {},
                 synchronizer_->update_share(), plan.experiment.average) {
  if (plan.batch.span > 1) group_ranks_ = machine.communicator().share_groups(static_cast<int>(plan.batch.span));
  machine.communicator().set_rounding(
      gradient_rounding(plan.parameters.trained(), plan.batch.global * plan.graph.sequence(), 1));
}

// The learning rate is so small that the weights practically stay the same. The work is that of any other update.
void SyntheticStep::start_update() {
  const auto momentum = norm_momentum(plan_.experiment);
  optimizer_.start(*weights_, *gradients_, {.rate = 1e-30, .samples = static_cast<double>(plan_.batch.global)}, 1,
                   momentum, program_.get());
}

void SyntheticStep::update() {
  start_update();
  optimizer_.finish();
}

void SyntheticStep::step() {
  synchronizer_->begin();
  for (std::int64_t i = 0; i < plan_.batch.accumulation; ++i) {
    const bool last = i + 1 == plan_.batch.accumulation;
    forward();
    program_->backward(*gradients_, i > 0, last ? overlap_ : BackwardHooks{});
  }
  synchronizer_->finish();
  start_update();
  program_->take_sums();
  double counters[7] = {};
  synchronizer_->agree(counters);
  optimizer_.finish();
  if (!optimizer_.is_shared()) return;
  synchronizer_->share(*weights_);
  program_->set_weights(*weights_);
}

std::vector<WatermarkPoint> SyntheticStep::watermark() {
  std::vector<WatermarkPoint> points;
  forward_alone();
  const double begin = now_seconds();
  BackwardHooks hooks{
      [&](std::int64_t mark) {
        points.push_back({now_seconds() - begin, static_cast<double>(mark) / static_cast<double>(gradients_->size())});
      },
      [] {}};
  program_->backward(*gradients_, false, hooks);
  program_->take_sums();
  const double seconds = now_seconds() - begin;
  for (WatermarkPoint& p : points) p.time = std::min(1.0, p.time / seconds);
  // Every second point is removed. Of two neighbours the later one stays, so that no bucket counts as final too early.
  while (points.size() > watermark_points) {
    std::vector<WatermarkPoint> fewer;
    for (std::size_t i = 1; i < points.size(); i += 2) fewer.push_back(points[i]);
    if (fewer.back().share < points.back().share) fewer.push_back(points.back());
    points = fewer;
  }
  return points;
}

}  // namespace ringtrain
