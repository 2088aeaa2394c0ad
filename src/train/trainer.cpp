#include "train/trainer.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "nn/parameters.h"
#include "optim/schedule.h"
#include "run/course.h"

namespace ringtrain {

namespace {

UpdateRanks ranks_of(Communicator& communicator) {
  return {
      .rank = communicator.rank(),
      .size = communicator.size(),
      .broadcast = [&communicator](std::span<float> values, int root) { communicator.broadcast_vector(values, root); }};
}

}  // namespace

Trainer::Trainer(const RunPlan& plan, Backend& backend, Communicator& communicator, Watchdog& watchdog,
                 BatchInput& input, std::optional<UpdateShare> share, StageRanks* stages)
    : plan_(plan),
      part_(part_of(plan, communicator.rank())),
      backend_(backend),
      watchdog_(watchdog),
      communicator_(communicator),
      stages_(stages),
      weights_(backend.make_vector(part_.parameters.size())),
      gradients_(backend.make_vector(gradient_elements(plan, part_.parameters), true)),
      synchronizer_(make_synchronizer(plan.experiment.parallel, communicator, stages, gradients_->all(),
                                      part_.parameters.trained(), bucket_elements(plan, backend.on_device()),
                                      backend.on_device())),
      optimizer_(optimizer_of(plan.experiment, plan.schedule), part_.parameters, backend, ranks_of(communicator),
                 share ? std::move(*share) : synchronizer_->update_share(), plan.experiment.average),
      loss_scale_(plan.precision == Precision::fp16 ? LossScale(plan.experiment.loss_scale) : LossScale()),
      noise_(plan, backend, part_.parameters, optimizer_),
      passes_(plan, part_, backend, communicator, stages, input, *gradients_, noise_.small_norms()),
      course_(plan.course) {
  communicator.set_rounding(
      gradient_rounding(part_.parameters.trained(), plan.batch.global * plan.graph.sequence(), loss_scale_.value()));
}

TrainerState Trainer::fresh_state() const {
  TrainerState state;
  if (noise_.groups())
    for (std::size_t i = 0; i < noise_.groups()->size(); ++i) state.noise_groups[noise_.groups()->name(i)] = {};
  return state;
}

void Trainer::save(TrainerState& state) const {
  state.loss_scale = static_cast<double>(loss_scale_.value());
  state.loss_scale_steps = loss_scale_.steps_since_change();
  state.applied = optimizer_.applied();
  noise_.save(state);
  if (plan_.experiment.batch.follow_noise > 0) state.batch = batch();
}

void Trainer::load(const TrainerState& state, const Position& position) {
  if (state.loss_scale > 0) loss_scale_.resume(static_cast<float>(state.loss_scale), state.loss_scale_steps);
  optimizer_.resume(state.applied);
  noise_.resume(state);
  start_at(position, state.batch);
}

void Trainer::start_at(const Position& position, std::int64_t batch) {
  if (batch > 0) course_ = constant_course(batch, course_.epoch_samples, course_.keeps_rest);
  position_ = course_.settled(position);
  passes_.program().set_weights(*weights_);
  passes_.seek(position_, batch);
}

StepReport Trainer::step(const Requests& requests) {
  StepReport report;
  StepTimes& times = report.times;
  StepClock clock(watchdog_, position_.step, times);
  const double begin = now_seconds();
  const Position next = next_position();
  const PassStep now = step_at(position_);
  report.samples = now.samples;
  const bool compares = compares_now();
  const BackwardHooks overlap{[this](std::int64_t watermark) { synchronizer_->ready(watermark); },
                              [this] { synchronizer_->poll(); }};
  synchronizer_->begin(passes_.begin(now, measures_noise()));
  clock.time(Phase::forward, [this] { sleep_if_slow(); });
  passes_.run(now, reads_on(next), overlap, *synchronizer_, clock);
  const std::int64_t targets = passes_.targets();
  if (compares) clock.time(Phase::update, [&] { replicas_->start(); });

  // The host gives a device all work of this step and the first pass of the next step before it waits, so that the
  // device is never idle. On a CPU, agree() ends the sums, and finish_update() makes the update.
  clock.time(Phase::communication, [&] { synchronizer_->all_ready(); });
  clock.time(Phase::update, [&] { queue_update(report, 1); });
  if (may_run_ahead()) passes_.run_ahead(step_at(next), *synchronizer_, clock);
  const LossSums sums = clock.time(Phase::backward, [&] { return passes_.take_sums(); });
  const StageWaits stage_waits = passes_.stage_waits();
  note_stage_waits(stage_waits, begin, times);
  StepCounters counters =
      clock.time(Phase::communication, [&] { return own_counters(sums, requests, stage_waits, compares); });
  clock.time(Phase::communication, [&] { counters.sum_over_ranks(*synchronizer_); });
  if (compares) replicas_->judge(counters.of_copies, position_.step);
  compares_next_ = counters.requests.check > 0;
  const double ranks = communicator_.size();
  report.stage_waits = {counters.stage_waits.bubble / ranks, counters.stage_waits.boundary / ranks};
  clock.time(Phase::update, [&] { finish_update(report, counters, targets); });
  if (report.applied && optimizer_.is_shared()) clock.time(Phase::communication, [&] { share_weights(); });
  times.server = synchronizer_->server_seconds();

  position_ = next;
  flip_bit();
  follow_noise(report);
  report.position = position_;
  watchdog_.step_finished(position_.step);
  return report;
}

PassStep Trainer::step_at(const Position& position, bool is_alone) const {
  return {.position = position,
          .batch = resized(plan_.batch, course_.batch_at(position)),
          .samples = course_.samples_at(position),
          .loss_scale = loss_scale_.value(),
          .is_alone = is_alone};
}

// Returns whether this step compares the copies, as the previous step left them. The result is the same on all ranks.
bool Trainer::compares_now() const {
  const std::int64_t every = plan_.experiment.communication.check_every_steps;
  return replicas_ && (compares_next_ || (every > 0 && position_.step > 0 && position_.step % every == 0));
}

void Trainer::sleep_if_slow() const {
  const TestConfig& test = plan_.experiment.test;
  if (test.slow_rank == communicator_.rank() && test.slow_seconds > 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(test.slow_seconds));
}

// Returns whether the first micro-batch of the next step may be read early. After the last step there is none. If this
// step may change the batch, it is not read.
bool Trainer::reads_on(const Position& next) const {
  return !is_over(plan_, next) &&
         !noise_.may_change_batch(course_.batch_at(position_), course_.samples_at(position_), next);
}

namespace {

// Returns the weight of a step's statistics in the running statistics. With norm_statistics: last, it is 1, so that the
// running statistics are those of the last step.
float norm_momentum(const Experiment& experiment) {
  if (experiment.evaluate.norm_statistics == "last") return 1;
  return static_cast<float>(experiment.model.norm_momentum);
}

}  // namespace

void Trainer::queue_update(StepReport& report, double rate_factor) {
  const double rate = rate_at(plan_, position_, noise_.scale_invariant_steps()) * rate_factor;
  report.learning_rate = rate;
  report.loss_scale = loss_scale_.value();
  const std::int64_t every = plan_.experiment.optimizer.record_trust_every_steps;
  const UpdateStep step{.rate = rate,
                        .epochs = plan_.schedule.epochs(position_),
                        .samples = static_cast<double>(report.samples),
                        .decay_factor = decay_factor_at(plan_, position_, report.samples),
                        .reports_trust = every > 0 && (position_.step + 1) % every == 0,
                        .adascale = noise_.next_gain(part_.parameters.size())};
  Program* const copies = optimizer_.is_shared() ? nullptr : &passes_.program();  // null: share_weights() renews them
  optimizer_.queue_update(*weights_, *gradients_, step, loss_scale_.value(), norm_momentum(plan_.experiment), copies);
  if (noise_.groups() && measures_noise()) optimizer_.fetch_norms();  // must come before a device gets its next pass
}

// Returns whether the first pass of the next step may begin before the host knows this step's sums. It may not begin if
// the loss scale is dynamic, because the scale may still change. It may not begin if the model carries state, because
// the pass would overwrite the state that this step's checkpoint needs. It may not begin on a CPU, because a CPU has
// not updated the weights yet. It may not begin in a pipeline, because its passes wait for the neighbouring stages. It
// may not begin if ranks share the update, because the weights of the other ranks have not arrived yet. Its input must
// have been staged.
bool Trainer::may_run_ahead() const {
  return backend_.on_device() && stages_ == nullptr && passes_.is_staged() && loss_scale_.fixed() &&
         !plan_.carries_state && !optimizer_.is_shared();
}

// Adds the waits for other stages (bubble and boundary) to the times of the step. The times of a step must not overlap.
// While a device waits for another stage, the host waits for the device. A part of this time is in no other time of the
// step, because the host was queueing messages. The rest was counted as backward, forward and so on, and is subtracted
// there.
void Trainer::note_stage_waits(const StageWaits& waits, double step_begin, StepTimes& times) const {
  const double uncounted = now_seconds() - step_begin - times.counted();
  times.bubble = waits.bubble;
  times.boundary = waits.boundary;
  if (!backend_.on_device()) return;
  double waited = std::max(0.0, waits.bubble + waits.boundary - std::max(0.0, uncounted));
  for (double* part : {&times.backward, &times.forward, &times.input, &times.communication, &times.update}) {
    const double taken = std::min(*part, waited);
    *part -= taken;
    waited -= taken;
  }
}

// Waits for a device if the small-batch norms are measured or the copies are compared.
StepCounters Trainer::own_counters(const LossSums& sums, const Requests& requests, const StageWaits& waits,
                                   bool compares) {
  StepCounters counters{.loss = sums.loss,
                        .correct = static_cast<double>(sums.correct),
                        .requests = requests,
                        .stage_waits = waits,
                        .small_norms = noise_.small_norm_sums(measures_noise())};
  if (compares) counters.of_copies = replicas_->counters();
  return counters;
}

namespace {

// Returns the counters in the order in which they are summed.
std::vector<double*> in_order(StepCounters& c) {
  Requests& r = c.requests;
  std::vector<double*> all = {&c.loss,
                              &c.correct,
                              &r.signal,
                              &r.save,
                              &r.stop,
                              &r.fail,
                              &r.diverged,
                              &r.check,
                              &c.stage_waits.bubble,
                              &c.stage_waits.boundary,
                              &c.small_norms.all};
  for (double& counter : c.small_norms.of_groups) all.push_back(&counter);
  for (double& counter : c.of_copies) all.push_back(&counter);
  return all;
}

}  // namespace

void StepCounters::sum_over_ranks(Synchronizer& ranks) {
  const std::vector<double*> counters = in_order(*this);
  std::vector<double> values;
  for (const double* counter : counters) values.push_back(*counter);
  ranks.agree(values);
  for (std::size_t i = 0; i < counters.size(); ++i) *counters[i] = values[i];
}

namespace {

// Returns the text of the error that stops the run. If the loss is not finite, the report has no gradient norm.
std::string what_is_not_finite(const StepReport& report) {
  const auto name = [](double value) { return std::isnan(value) ? "NaN" : "infinite"; };
  if (!std::isfinite(report.loss)) return cat("the loss is ", name(report.loss));
  return cat("the loss is ", report.loss, ", but the gradient's norm is ", name(report.gradient_norm),
             report.loss_scale != 1 ? cat(" with a loss scale of ", report.loss_scale) : "");
}

}  // namespace

// The reduced values have the same bits on all ranks. All ranks therefore continue, all skip the update, or all stop.
// If the loss is not finite, no weight has changed: a CPU has not begun the update, and a device has found NaN in the
// gradient and skipped it.
void Trainer::finish_update(StepReport& report, const StepCounters& counters, std::int64_t targets) {
  report.requests = counters.requests;
  report.loss = counters.loss / static_cast<double>(targets);
  report.accuracy = counters.correct / static_cast<double>(targets);
  if (std::isfinite(report.loss)) {
    UpdateResult result = optimizer_.finish_update();
    report.gradient_norm = result.gradient_norm;
    report.applied = result.applied;
    noise_.note_gain(report, result);
    if (result.applied && measures_noise())
      report.noise = noise_.add(report, counters.small_norms, targets, next_position().samples,
                                report.samples < course_.batch_at(position_));
    report.trust_ratios = std::move(result.trust_ratios);
    if (loss_scale_.advance(result.applied)) return;
  }
  throw Diverged(cat("step ", position_.step + 1, ": ", what_is_not_finite(report),
                     "; the weights are as they were after step ", position_.step),
                 "lower learning_rate.base, lengthen the warm-up or set optimizer.clip_norm, then --resume from the "
                 "last checkpoint");
}

// Sends the weights that this rank has updated to the other ranks, and receives theirs.
void Trainer::share_weights() {
  synchronizer_->share(*weights_);
  passes_.program().set_weights(*weights_);
}

// Imitates a failing memory (test.flip_bit_rank). It flips the highest bit of the fraction in the first element of a
// tensor.
void Trainer::flip_bit() {
  const TestConfig& test = plan_.experiment.test;
  if (test.flip_bit_rank != communicator_.rank() || test.flip_bit_step != position_.step) return;
  const std::vector<ReplicatedTensor> all = replicated();
  const auto tensor = std::ranges::find(all, test.flip_bit_in, &ReplicatedTensor::name);
  if (tensor == all.end())
    throw Error(cat("test.flip_bit_in is ", test.flip_bit_in, ", but rank ", test.flip_bit_rank,
                    " has no copy of such a tensor, expected one like ", all.front().name, " or ", all.back().name));
  float value = 0;
  backend_.copy_to_host(*tensor->vector, tensor->elements.begin, std::span(&value, 1));
  value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ (1u << 22));
  backend_.copy_from_host(std::span(&value, 1), *tensor->vector, tensor->elements.begin);
}

// If the batch grows, the samples that the loader has read ahead for the smaller batch are discarded. The loader reads
// them again for the larger batch.
void Trainer::follow_noise(const StepReport& report) {
  const std::int64_t batch = course_.batch_at(position_);
  const std::int64_t now = noise_.next_batch(batch, report, position_.samples);
  if (now == batch) return;
  course_ = constant_course(now, course_.epoch_samples, course_.keeps_rest);
  position_ = course_.settled(position_);
  if (!is_over(plan_, position_)) passes_.seek(position_, now);
}

LossSums Trainer::compute(const Position& position, StepTimes& times) {
  StepClock clock(watchdog_, position.step, times);
  const PassStep step = step_at(position, true);
  passes_.program().set_weights(*weights_);
  passes_.begin(step, false);
  clock.time(Phase::forward, [this] { sleep_if_slow(); });
  passes_.run(step, false, {}, *synchronizer_, clock);
  LossSums sums = clock.time(Phase::backward, [&] { return passes_.take_sums(); });
  sums.targets = passes_.targets();
  watchdog_.step_finished(position.step);
  return sums;
}

StepReport Trainer::apply(const LossSums& sums, double rate_factor) {
  StepReport report;
  StepClock clock(watchdog_, position_.step, report.times);
  report.samples = course_.samples_at(position_);
  report.met = false;
  clock.time(Phase::update, [&] {
    sleep_if_slow();
    queue_update(report, rate_factor);
    finish_update(report, own_counters(sums, {}, {}, false), sums.targets);
  });
  position_ = report.position = next_position();
  flip_bit();
  watchdog_.step_finished(position_.step);
  return report;
}

void Trainer::compare_copies(std::function<KnownCheckpoint()> known_good) {
  const int copies = stages_ != nullptr ? stages_->replicas() : communicator_.size();
  if (plan_.experiment.communication.check_every_steps == 0 || copies == 1) return;
  ReplicaGroups groups;
  if (stages_ != nullptr) groups = {.index = stages_->stage(), .count = stages_->stages(), .what = "stage"};
  std::vector<ReplicatedTensor> tensors = replicated();
  // Between meetings, a server updates only its own range of the state.
  if (plan_.servers)
    std::erase_if(tensors, [](const ReplicatedTensor& tensor) { return !is_weight_array(tensor.name); });
  replicas_ = std::make_unique<ReplicaCheck>(backend_, communicator_, std::move(tensors), std::move(groups),
                                             std::move(known_good));
}

void Trainer::check_copies() {
  if (replicas_) replicas_->run(position_.step);
}

}  // namespace ringtrain
