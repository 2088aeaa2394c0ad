#include "bench/synthetic_step.h"

#include <algorithm>

#include "base/clock.h"
#include "base/random.h"
#include "checkpoint/snapshot.h"
#include "run/passes.h"

namespace ringtrain {

namespace {

constexpr std::size_t watermark_points = 64;

// Returns a plan of the same passes for an experiment that learns nothing and measures nothing. The split of the work
// stays, although another experiment might have got another one: `plan` is what is measured.
RunPlan without_learning(const RunPlan& plan) {
  RunTask task = plan;
  Experiment& e = task.experiment;
  e.learning_rate = {};
  e.learning_rate.base = 1e-30;
  e.optimizer.record_trust_every_steps = 0;
  e.batch.follow_noise = 0;
  e.noise.every_steps = 0;
  e.stop = {};
  e.branch = {};
  e.test = {};
  RunCourse course = plan;
  course.adascale_times = 0;
  return {task, course, plan, passes_of(task, course, plan, plan.graph, plan.micro_batch_choice)};
}

}  // namespace

RandomInput::RandomInput(const RunPlan& plan, std::int64_t micro_batch)
    : micro_batch_(micro_batch),
      accumulation_(plan.batch.accumulation),
      inputs_(static_cast<std::size_t>(micro_batch * plan.graph.input_bytes())),
      targets_(static_cast<std::size_t>(micro_batch * plan.graph.sequence())) {
  const auto* tokens = std::get_if<TokenInput>(&plan.graph.nodes().front().operation);
  const int values = tokens != nullptr ? static_cast<int>(tokens->vocabulary) : 256;
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    inputs_[i] = static_cast<std::uint8_t>(static_cast<int>(random_uniform(1, i) * values));
  for (std::size_t i = 0; i < targets_.size(); ++i)
    targets_[i] = static_cast<std::int32_t>(random_uniform(2, i) * static_cast<double>(plan.graph.classes()));
  batch_.micro_step = -1;
  batch_.step_targets = accumulation_ * std::ssize(targets_);
  batch_.valid_rows = micro_batch;
  batch_.inputs = inputs_;
  batch_.targets = targets_;
}

const MicroBatch& RandomInput::next() {
  batch_.micro_step = (batch_.micro_step + 1) % accumulation_;
  batch_.first_row = batch_.micro_step * micro_batch_;
  return batch_;
}

SyntheticPasses::SyntheticPasses(const RunPlan& plan, Backend& backend, std::int64_t micro_batch,
                                 Communicator* communicator)
    : input_(plan, micro_batch),
      weights_(backend.make_vector(plan.parameters.size())),
      gradients_(backend.make_vector(plan.parameters.size(), true)),
      state_(static_cast<std::size_t>(plan.carries_state ? micro_batch * plan.graph.state_size() : 0)) {
  std::vector<float> flat(static_cast<std::size_t>(weights_->size()));
  initialize(plan.parameters, plan.experiment.seed, flat);
  backend.copy_from_host(flat, *weights_, 0);
  if (communicator != nullptr && plan.batch.span > 1)
    norm_team_ = communicator->make_norm_team(static_cast<int>(plan.batch.span));
  const std::int64_t group = norm_team_ ? plan.norm_group : std::min(plan.norm_group, micro_batch);
  program_ = backend.compile(plan.graph, micro_batch, plan.precision, PassMode::training, group);
  program_->allocate();
  program_->set_weights(*weights_);
  context_.gradient_scale = 1.0f / static_cast<float>(plan.batch.global * plan.graph.sequence());
  context_.statistic_scale = 1.0f / static_cast<float>(plan.batch.workers * plan.batch.span);
  context_.dropout_key = random_key(plan.experiment.seed, RandomPurpose::dropout);
  context_.norm_team = norm_team_.get();
  context_.state = state_.empty() ? nullptr : state_.data();
}

void SyntheticPasses::forward() {
  const MicroBatch& batch = input_.next();
  program_->run({batch.inputs.data(), batch.targets.data()}, context_);
}

void SyntheticPasses::pass(const BackwardHooks& hooks) {
  const MicroBatch& batch = input_.next();
  program_->stage({batch.inputs.data(), batch.targets.data()});
  program_->forward(context_);
  program_->backward(*gradients_, false, hooks);
  program_->take_sums();
}

std::vector<WatermarkPoint> SyntheticPasses::watermark() {
  std::vector<WatermarkPoint> points;
  forward();
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

StillSteps::StillSteps(const BenchContext& context, const RunPlan& plan, BatchInput& input)
    : plan_(without_learning(plan)),
      watchdog_(context.session.job(), 0),
      trainer_(plan_, *context.machine.backend, context.machine.communicator(), watchdog_, input) {
  load_trainer(nullptr, trainer_, plan_, {}, context.machine.communicator());
  restart();
}

}  // namespace ringtrain
