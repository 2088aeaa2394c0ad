#include "train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"

namespace ringtrain {

// Tells the watchdog what the step is at, and adds up where the step's time goes.
class StepClock {
 public:
  StepClock(Watchdog& watchdog, std::int64_t step) : watchdog_(watchdog), step_(step) {}
  template <class Action>
  auto time(Phase phase, double& seconds, const Action& action) {
    watchdog_.enter(step_, phase);
    const double begin = now_seconds();
    if constexpr (std::is_void_v<decltype(action())>) {
      action();
      seconds += now_seconds() - begin;
    } else {
      auto&& result = action();
      seconds += now_seconds() - begin;
      return result;
    }
  }

 private:
  Watchdog& watchdog_;
  std::int64_t step_;
};

namespace {

using Pieces = std::vector<std::span<const std::byte>>;
Pieces with(Pieces pieces, const std::vector<float>& values) {
  if (!values.empty()) pieces.push_back(std::as_bytes(std::span(values)));
  return pieces;
}

}  // namespace

Trainer::Trainer(const RunPlan& plan, Backend& backend, Communicator& communicator, Watchdog& watchdog, Loader& loader)
    : plan_(plan),
      backend_(backend),
      communicator_(communicator),
      watchdog_(watchdog),
      loader_(loader),
      weights_(backend.make_vector(plan.parameters.size())),
      gradients_(backend.make_vector(plan.parameters.size(), true)),
      optimizer_(plan.experiment.optimizer, plan.parameters, backend),
      loss_scale_(plan.precision == Precision::fp16 ? LossScale(plan.experiment.loss_scale) : LossScale()),
      program_(
          backend.compile(plan.graph, plan.batch.micro_batch, plan.precision, PassMode::training, plan.norm_group)),
      reducer_(communicator, {gradients_->data(), static_cast<std::size_t>(gradients_->size())},
               bucket_elements(plan.experiment.communication, backend.on_device())),
      overlap_{[this](std::int64_t watermark) { reducer_.ready(watermark); }, [this] { reducer_.poll(); }},
      carried_state_(plan.carries_state ? static_cast<std::size_t>(plan.batch.rows_per_rank * plan.graph.state_size())
                                        : 0),
      pinned_(backend, with(loader.ring(), carried_state_)),
      dropout_key_(random_key(plan.experiment.seed, RandomPurpose::dropout)) {
  program_->allocate();
}

void Trainer::start_at(std::int64_t finished_steps) {
  step_ = finished_steps;
  program_->set_weights(*weights_);
  loader_.seek(step_ / plan_.schedule.steps_per_epoch, step_ % plan_.schedule.steps_per_epoch);
  staged_.reset();
}

StepReport Trainer::step(const Requests& requests) {
  StepReport report;
  StepTimes& times = report.times;
  StepClock clock(watchdog_, step_);
  reducer_.begin();

  for (std::int64_t micro_step = 0; micro_step < plan_.batch.accumulation; ++micro_step) {
    const bool last = micro_step + 1 == plan_.batch.accumulation;
    if (!std::exchange(ahead_, false)) begin_pass(clock, times, step_);
    clock.time(Phase::backward, times.backward,
               [&] { program_->backward(*gradients_, micro_step > 0, last ? overlap_ : BackwardHooks{}); });
    staged_.reset();
    // A device computes on meanwhile. Behind the last step nothing is read: it may not exist.
    if (!last || step_ + 1 != plan_.schedule.total_steps) clock.time(Phase::input, times.input, [&] { stage_next(); });
  }
  program_->close_sums();
  const std::int64_t targets = targets_;
  const bool device = backend_.on_device();
  if (device) {
    // All that the device will do for this step, and the next pass, before the host waits for anything: it never idles.
    clock.time(Phase::communication, times.communication, [&] { reducer_.finish({}); });
    clock.time(Phase::update, times.update, [&] { start_update(report); });
    if (may_run_ahead()) {
      begin_pass(clock, times, step_ + 1);
      ahead_ = true;
    }
  }
  const LossSums sums = clock.time(Phase::backward, times.backward, [&] { return program_->take_sums(); });

  std::array<double, 7> counters = {sums.loss,
                                    static_cast<double>(sums.correct),
                                    static_cast<double>(sums.correct5),
                                    requests.signal,
                                    requests.save,
                                    requests.stop,
                                    requests.fail};
  clock.time(Phase::communication, times.communication, [&] {
    if (device)
      communicator_.sum(std::span<double>(counters));
    else
      reducer_.finish(counters);
  });

  clock.time(Phase::update, times.update, [&] {
    report.requests = {counters[3], counters[4], counters[5], counters[6]};
    if (!device && std::isfinite(counters[0])) start_update(report);
    finish_update(report, counters, targets);
  });

  report.step = ++step_;
  watchdog_.step_finished(step_);
  return report;
}

double Trainer::rate_at(std::int64_t step) const {
  return learning_rate(plan_.experiment.learning_rate, plan_.schedule, step);
}

// The gradient is scaled by 1 / this before the backward pass, so that the reduction over ranks is a plain sum. Without
// masking every target counts and nobody needs to be asked.
std::int64_t Trainer::global_targets(const MicroBatch& first) {
  if (!plan_.train_loader.mask_blanks) return plan_.batch.global * plan_.graph.sequence();
  double count = static_cast<double>(first.step_targets);
  communicator_.sum(std::span<double>(&count, 1));
  return std::max<std::int64_t>(1, std::llround(count));
}

void Trainer::begin_pass(StepClock& clock, StepTimes& times, std::int64_t step) {
  clock.time(Phase::input, times.input, [&] {
    if (!staged_) stage_next();
    if (staged_->micro_step == 0) targets_ = global_targets(*staged_);
  });
  clock.time(Phase::forward, times.forward, [&] { program_->forward(pass_context(*staged_, step)); });
}

// The next step's first pass needs nothing that this step has yet to find out. Not so where a dynamic loss scale may
// change, nor where the pass writes the carried state, which a checkpoint behind this step holds.
bool Trainer::may_run_ahead() const {
  return staged_.has_value() && loss_scale_.fixed() && !plan_.carries_state;
}

void Trainer::stage_next() {
  staged_ = loader_.next();
  program_->stage({staged_->inputs.data(), staged_->targets.data()});
}

PassContext Trainer::pass_context(const MicroBatch& batch, std::int64_t step) {
  PassContext context;
  context.gradient_scale = loss_scale_.value() / static_cast<float>(targets_);
  context.statistic_scale = 1.0f / static_cast<float>(plan_.batch.workers);
  context.dropout_key = dropout_key_;
  context.step = step;
  context.first_row = batch.first_row;
  if (plan_.carries_state) {
    const std::int64_t rows = plan_.batch.micro_batch * plan_.graph.state_size();
    context.state = carried_state_.data() + batch.micro_step * rows;
    if (batch.resets_state) std::fill_n(context.state, rows, 0.0f);
  }
  return context;
}

void Trainer::start_update(StepReport& report) {
  const Optimizer::Rates rates{rate_at(step_), rate_at(std::max<std::int64_t>(0, step_ - 1))};
  const auto norm_momentum = static_cast<float>(plan_.experiment.model.norm_momentum);
  report.learning_rate = rates.now;
  report.loss_scale = loss_scale_.value();
  optimizer_.start(*weights_, *gradients_, rates, step_, loss_scale_.value(), norm_momentum, program_.get());
}

// Reduced values are the same bits on all ranks, so all of them go on, skip or stop here, or none. Where the loss is
// not finite no weight has changed: a CPU has not begun, a device has found NaN in the gradient.
void Trainer::finish_update(StepReport& report, std::span<const double> counters, std::int64_t targets) {
  report.loss = counters[0] / static_cast<double>(targets);
  report.accuracy = counters[1] / static_cast<double>(targets);
  report.accuracy5 = counters[2] / static_cast<double>(targets);
  if (std::isfinite(report.loss)) {
    const UpdateResult result = optimizer_.finish();
    report.gradient_norm = result.gradient_norm;
    report.applied = result.applied;
    if (loss_scale_.advance(result.applied)) return;
  }
  throw Error(cat("step ", step_ + 1, ": loss ", report.loss, ", gradient norm ", report.gradient_norm,
                  "; the weights are as they were after step ", step_),
              "lower learning_rate.base, lengthen the warm-up or set optimizer.clip_norm, then --resume from the last "
              "checkpoint");
}

}  // namespace ringtrain
