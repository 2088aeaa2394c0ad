#include "train/trainer.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/pages.h"
#include "base/random.h"
#include "optim/batch_rules.h"
#include "run/course.h"
#include "run/norm_plan.h"

namespace ringtrain {

// Tells the watchdog the current phase of the step and measures the time of each phase.
class StepClock {
 public:
  StepClock(Watchdog& watchdog, std::int64_t step) : watchdog_(watchdog), step_(step) {}
  template <class Action>
  auto time(Phase phase, double& seconds, const Action& action) {
    struct Stop {
      double& seconds;
      double begin = now_seconds();
      ~Stop() { seconds += now_seconds() - begin; }
    };
    watchdog_.enter(step_, phase);
    const Stop stop{seconds};
    return action();
  }

 private:
  Watchdog& watchdog_;
  std::int64_t step_;
};

// The counters of a step, which are summed over all ranks.
class StepCounters {
 public:
  StepCounters(const LossSums& sums, const Requests& r, const PassTimes& passes, double small_norms,
               const std::vector<double>& of_groups, const std::vector<double>& of_copies)
      : values_{sums.loss,
                static_cast<double>(sums.correct),
                static_cast<double>(sums.correct5),
                r.signal,
                r.save,
                r.stop,
                r.fail,
                r.diverged,
                r.check,
                passes.bubble,
                passes.boundary,
                small_norms},
        copies_(of_copies.size()) {
    values_.insert(values_.end(), of_groups.begin(), of_groups.end());
    values_.insert(values_.end(), of_copies.begin(), of_copies.end());
  }
  std::span<double> values() { return values_; }
  double loss() const { return values_[0]; }
  double correct() const { return values_[1]; }
  double correct5() const { return values_[2]; }
  Requests requests() const { return {values_[3], values_[4], values_[5], values_[6], values_[7], values_[8]}; }
  // Returns the mean over `ranks` ranks.
  PassTimes passes(int ranks) const { return {values_[9] / ranks, values_[10] / ranks}; }
  double small_norms() const { return values_[11]; }  // squared norms of all small batches; 0: not measured
  std::span<const double> small_norms_of_groups() const {
    return std::span(values_).subspan(12, values_.size() - copies_ - 12);
  }
  // Returns the counters of ReplicaCheck. They are empty if this step does not compare the copies.
  std::span<const double> copies() const { return std::span(values_).last(copies_); }

 private:
  std::vector<double> values_;
  std::size_t copies_;
};

namespace {

using Pieces = std::vector<std::span<const std::byte>>;
Pieces with(Pieces pieces, const PageVector<float>& values) {
  if (!values.empty()) pieces.push_back(pages_of(values));
  return pieces;
}

// Returns the text of the error that stops the run. If the loss is not finite, the report has no gradient norm.
std::string what_is_not_finite(const StepReport& report) {
  const auto name = [](double value) { return std::isnan(value) ? "NaN" : "infinite"; };
  if (!std::isfinite(report.loss)) return cat("the loss is ", name(report.loss));
  return cat("the loss is ", report.loss, ", but the gradient's norm is ", name(report.gradient_norm),
             report.loss_scale != 1 ? cat(" with a loss scale of ", report.loss_scale) : "");
}

UpdateRanks ranks_of(Communicator& communicator) {
  return {
      .rank = communicator.rank(),
      .size = communicator.size(),
      .broadcast = [&communicator](std::span<float> values, int root) { communicator.broadcast_vector(values, root); }};
}

std::optional<NoiseGroups> make_noise_groups(const RunPlan& plan) {
  const std::string& by = plan.experiment.noise.groups;
  if (!plan.measures_noise || by == "none") return std::nullopt;
  return NoiseGroups(plan.parameters, by, plan.noise_half_life);
}

std::vector<ElementRange> ranges_of(const Optimizer& optimizer) {
  std::vector<ElementRange> ranges;
  for (const UpdateRange& range : optimizer.ranges()) ranges.push_back({range.begin, range.end});
  return ranges;
}

}  // namespace

Trainer::Trainer(const RunPlan& plan, Backend& backend, Communicator& communicator, Watchdog& watchdog, Loader& loader,
                 std::optional<UpdateShare> share, StageRanks* stages)
    : plan_(plan),
      part_(part_of(plan, communicator.rank())),
      backend_(backend),
      watchdog_(watchdog),
      loader_(loader),
      communicator_(communicator),
      stages_(stages),
      weights_(backend.make_vector(part_.parameters.size())),
      gradients_(backend.make_vector(gradient_elements(plan, part_.parameters), true)),
      synchronizer_(make_synchronizer(
          plan.experiment.parallel, communicator, stages,
          {gradients_->data(), static_cast<std::size_t>(gradients_->size())}, part_.parameters.trained(),
          bucket_elements(plan.experiment.communication, backend.on_device(), plan.batch.ranks), backend.on_device())),
      optimizer_(optimizer_of(plan.experiment, plan.schedule), part_.parameters, backend, ranks_of(communicator),
                 share ? std::move(*share) : synchronizer_->update_share(), plan.experiment.average),
      loss_scale_(plan.precision == Precision::fp16 ? LossScale(plan.experiment.loss_scale) : LossScale()),
      group_ranks_(plan.batch.span > 1 ? communicator.share_groups(static_cast<int>(plan.batch.span)) : nullptr),
      program_(compile_part(plan, part_, backend, PassMode::training, plan.batch.micro_batch)),
      order_(make_pass_order(stages, *program_, plan.experiment.parallel.schedule, part_.slots)),
      noise_scale_(plan.noise_half_life),
      noise_groups_(make_noise_groups(plan)),
      passes_(plan, backend, part_.parameters, *gradients_, noise_groups_ ? &*noise_groups_ : nullptr,
              ranges_of(optimizer_)),
      noise_follower_(plan.experiment.batch.follow_noise, plan.patience, plan.experiment.batch.largest),
      overlap_{[this](std::int64_t watermark) { synchronizer_->ready(watermark); }, [this] { synchronizer_->poll(); }},
      course_(plan.course),
      carried_state_(plan.carries_state ? static_cast<std::size_t>(plan.batch.rows_per_rank * part_.graph.state_size())
                                        : 0),
      pinned_(backend, with(loader.ring(), carried_state_)),
      dropout_key_(random_key(plan.experiment.seed, RandomPurpose::dropout)),
      slow_seconds_(plan.experiment.test.slow_rank == communicator.rank() ? plan.experiment.test.slow_seconds : 0) {
  program_->allocate();
  communicator.set_rounding(
      gradient_rounding(part_.parameters.trained(), plan.batch.global * plan.graph.sequence(), loss_scale_.value()));
  if (plan.adascale_times > 0)
    adascale_.emplace(plan.adascale_times, static_cast<double>(plan.batch.global),
                      static_cast<double>(plan.batch.small_batch));
}

TrainerState Trainer::fresh_state() const {
  TrainerState state;
  for (std::size_t i = 0; noise_groups_ && i < noise_groups_->size(); ++i)
    state.noise_groups[noise_groups_->name(i)] = {};
  return state;
}

void Trainer::save(TrainerState& state) const {
  state.loss_scale = static_cast<double>(loss_scale_.value());
  state.loss_scale_steps = loss_scale_.steps_since_change();
  state.applied = optimizer_.applied();
  state.noise = noise_scale_.state();
  for (std::size_t i = 0; noise_groups_ && i < noise_groups_->size(); ++i)
    state.noise_groups[noise_groups_->name(i)] = noise_groups_->scale(i).state();
  if (adascale_) state.adascale = adascale_->state();
  if (plan_.experiment.batch.follow_noise > 0) state.batch = batch();
  state.batch_small_since = noise_follower_.small_since();
}

void Trainer::load(const TrainerState& state, const Position& position) {
  if (state.loss_scale > 0) loss_scale_.resume(static_cast<float>(state.loss_scale), state.loss_scale_steps);
  optimizer_.resume(state.applied);
  noise_scale_.resume(state.noise);
  for (std::size_t i = 0; noise_groups_ && i < noise_groups_->size(); ++i)
    noise_groups_->scale(i).resume(state.noise_groups.at(noise_groups_->name(i)));
  if (adascale_) adascale_->resume(state.adascale);
  noise_follower_.resume(state.batch_small_since);
  start_at(position, state.batch);
}

void Trainer::start_at(const Position& position, std::int64_t batch) {
  if (batch > 0) course_ = constant_course(batch, course_.epoch_samples, course_.keeps_rest);
  position_ = course_.settled(position);
  program_->set_weights(*weights_);
  loader_.seek(position_.epoch, position_.offset, batch);
  staged_.reset();
  staged_of_step_ = 0;
}

StepReport Trainer::step(const Requests& requests) {
  StepReport report;
  StepTimes& times = report.times;
  StepClock clock(watchdog_, position_.step);
  const double begin = now_seconds();
  const Position next = next_position();
  const BatchPlan batch = batch_at(position_);
  report.samples = course_.samples_at(position_);
  const bool measures = measures_noise(next), compares = compares_now();
  synchronizer_->begin(passes_.begin(batch, measures));
  clock.time(Phase::forward, times.forward, [this] { sleep_if_slow(); });

  order_->run(batch.accumulation, {.input =
                                       [&](std::int64_t) {
                                         if (!ahead_) get_input(clock, times, position_);
                                       },
                                   .forward =
                                       [&](std::int64_t) {
                                         if (!std::exchange(ahead_, false)) forward(clock, times, position_);
                                       },
                                   .backward =
                                       [&](std::int64_t micro_step) {
                                         clock.time(Phase::backward, times.backward,
                                                    [&] { passes_.backward(*program_, micro_step, overlap_); });
                                         // A device computes during this read.
                                         if (!staged_ && keeps_reading(next))
                                           clock.time(Phase::input, times.input, [&] { stage_next(); });
                                       },
                                   .waits = [&] { watchdog_.enter(position_.step, Phase::stage_wait); }});
  staged_of_step_ = staged_ ? 1 : 0;
  const std::int64_t targets = targets_;
  program_->close_sums();
  if (compares) clock.time(Phase::update, times.update, [&] { replicas_->start(); });

  // The host gives a device all work of this step and the first pass of the next step before it waits, so that the
  // device is never idle.
  clock.time(Phase::communication, times.communication, [&] { synchronizer_->finish(); });
  clock.time(Phase::update, times.update, [&] { start_update(report); });
  if (may_run_ahead()) {
    get_input(clock, times, next);
    forward(clock, times, next);
    ahead_ = true;
  }
  const LossSums sums = clock.time(Phase::backward, times.backward, [&] { return passes_.take_sums(*program_); });
  const PassTimes passes = order_->times();
  note_passes(passes, begin, times);
  StepCounters counters = clock.time(Phase::communication, times.communication,
                                     [&] { return counters_of(sums, requests, passes, measures, compares); });
  clock.time(Phase::communication, times.communication, [&] { synchronizer_->agree(counters.values()); });
  if (compares) replicas_->judge(counters.copies(), position_.step);
  compares_next_ = counters.requests().check > 0;
  report.passes = counters.passes(communicator_.size());
  clock.time(Phase::update, times.update, [&] { finish_update(report, counters, targets); });
  if (report.applied && optimizer_.is_shared())
    clock.time(Phase::communication, times.communication, [&] { share_weights(); });
  times.server = synchronizer_->server_seconds();

  position_ = next;
  flip_bit();
  follow_noise(report);
  report.position = position_;
  watchdog_.step_finished(position_.step);
  return report;
}

// Adds the waits for other stages (bubble and boundary) to the times of the step. The times of a step must not overlap.
// While a device waits for another stage, the host waits for the device. A part of this time is in no other time of the
// step, because the host was queueing messages. The rest was counted as backward, forward and so on, and is subtracted
// there.
void Trainer::note_passes(const PassTimes& passes, double step_begin, StepTimes& times) const {
  const double uncounted = now_seconds() - step_begin - times.counted();
  times.bubble = passes.bubble;
  times.boundary = passes.boundary;
  if (!backend_.on_device()) return;
  double waited = std::max(0.0, passes.bubble + passes.boundary - std::max(0.0, uncounted));
  for (double* part : {&times.backward, &times.forward, &times.input, &times.communication, &times.update}) {
    const double taken = std::min(*part, waited);
    *part -= taken;
    waited -= taken;
  }
}

void Trainer::sleep_if_slow() const {
  if (slow_seconds_ > 0) std::this_thread::sleep_for(std::chrono::duration<double>(slow_seconds_));
}

LossSums Trainer::compute(const Position& position, StepTimes& times, std::int64_t& targets) {
  StepClock clock(watchdog_, position.step);
  alone_ = true;
  program_->set_weights(*weights_);
  staged_.reset();
  clock.time(Phase::forward, times.forward, [this] { sleep_if_slow(); });
  const BackwardHooks no_hooks{[](std::int64_t) {}, [] {}};
  for (std::int64_t pass = 0; pass < batch_at(position).accumulation; ++pass) {
    get_input(clock, times, position);
    forward(clock, times, position);
    clock.time(Phase::backward, times.backward, [&] { program_->backward(*gradients_, pass > 0, no_hooks); });
  }
  targets = targets_;
  program_->close_sums();
  const LossSums sums = clock.time(Phase::backward, times.backward, [&] { return program_->take_sums(); });
  watchdog_.step_finished(position.step);
  return sums;
}

StepReport Trainer::apply(const LossSums& sums, std::int64_t targets, double rate_factor) {
  StepReport report;
  StepClock clock(watchdog_, position_.step);
  report.samples = course_.samples_at(position_);
  report.met = false;
  rate_factor_ = rate_factor;
  clock.time(Phase::update, report.times.update, [&] {
    sleep_if_slow();
    start_update(report);
    finish_update(report, counters_of(sums, {}, {}, false, false), targets);
  });
  position_ = report.position = next_position();
  flip_bit();
  watchdog_.step_finished(position_.step);
  return report;
}

// Waits for a device if the small-batch norms are measured or the copies are compared.
StepCounters Trainer::counters_of(const LossSums& sums, const Requests& requests, const PassTimes& passes,
                                  bool measures, bool compares) {
  std::vector<double> of_groups(noise_groups_ ? noise_groups_->size() : 0);
  if (measures && noise_groups_) of_groups = passes_.small_norms()->sums_of_groups();
  return {sums,      requests,
          passes,    measures ? passes_.small_norms()->sum() : 0,
          of_groups, compares ? replicas_->counters() : std::vector<double>{}};
}

void Trainer::compare_copies(std::function<KnownCheckpoint()> known_good) {
  const int copies = stages_ != nullptr ? stages_->replicas() : communicator_.size();
  if (plan_.experiment.communication.check_every_steps == 0 || copies == 1) return;
  ReplicaGroups groups;
  if (stages_ != nullptr) groups = {.index = stages_->stage(), .count = stages_->stages(), .what = "stage"};
  std::vector<ReplicatedTensor> tensors = replicated();
  // Between meetings, a server updates only its own range of the state.
  if (plan_.servers)
    std::erase_if(tensors, [](const ReplicatedTensor& tensor) { return !tensor.name.starts_with("weights/"); });
  replicas_ = std::make_unique<ReplicaCheck>(backend_, communicator_, std::move(tensors), std::move(groups),
                                             std::move(known_good));
}

void Trainer::check_copies() {
  if (replicas_) replicas_->run(position_.step);
}

// Returns whether this step compares the copies, as the previous step left them. The result is the same on all ranks.
bool Trainer::compares_now() const {
  const std::int64_t every = plan_.experiment.communication.check_every_steps;
  return replicas_ && (compares_next_ || (every > 0 && position_.step > 0 && position_.step % every == 0));
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

bool Trainer::measures_noise(const Position& next) const {
  return plan_.measures_noise && course_.samples_at(position_) > plan_.batch.small_batch &&
         next.step % plan_.experiment.noise.every_steps == 0;
}

double Trainer::scheduled_rate() const {
  return rate_at(plan_, position_, adascale_ ? adascale_->steps() : 0) * rate_factor_;
}

// Returns the number of counted targets in the global batch. In compute(), it is the number in this rank's part of
// the batch. The gradient is divided by this number already in the backward pass, so that the reduction over the ranks
// is a plain sum. Without masking every target counts, so the ranks need not exchange anything.
std::int64_t Trainer::global_targets(const MicroBatch& first, const Position& position) {
  if (alone_) return std::max<std::int64_t>(1, first.step_targets);
  if (!plan_.train_loader.mask_blanks) return course_.samples_at(position) * plan_.graph.sequence();
  double count = part_.is_last() ? static_cast<double>(first.step_targets) : 0;
  synchronizer_->agree(std::span<double>(&count, 1));
  return std::max<std::int64_t>(1, std::llround(count));
}

// Returns whether the noise scale of this step may change the batch of the next step. The answer must be known before
// the noise scale is known, so that no pass with a wrong batch begins.
bool Trainer::may_change_batch(const Position& next) const {
  return measures_noise(next) && noise_follower_.may_double(course_.batch_at(position_), next.samples);
}

// If the batch grows, the samples that the loader has read ahead for the smaller batch are discarded. The loader reads
// them again for the larger batch.
void Trainer::follow_noise(const StepReport& report) {
  if (plan_.experiment.batch.follow_noise == 0 || !report.noise) return;
  const std::int64_t batch = course_.batch_at(position_);
  const std::int64_t now = noise_follower_.next(batch, report.noise->scale, position_.samples);
  if (now == batch) return;
  course_ = constant_course(now, course_.epoch_samples, course_.keeps_rest);
  position_ = course_.settled(position_);
  if (!is_over(plan_, position_)) loader_.seek(position_.epoch, position_.offset, now);
}

void Trainer::get_input(StepClock& clock, StepTimes& times, const Position& position) {
  if (!staged_) clock.time(Phase::input, times.input, [&] { stage_next(); });
  if (staged_->micro_step > 0) return;
  clock.time(Phase::communication, times.communication, [&] { targets_ = global_targets(*staged_, position); });
}

void Trainer::forward(StepClock& clock, StepTimes& times, const Position& position) {
  clock.time(Phase::forward, times.forward, [&] { program_->forward(pass_context(*staged_, position)); });
  staged_.reset();
}

// Returns whether there is another micro-batch to read. After the last step there may be none. If this step may change
// the batch, the next step's first micro-batch is not read early.
bool Trainer::keeps_reading(const Position& next) {
  return staged_of_step_ < batch_at(position_).accumulation || !(is_over(plan_, next) || may_change_batch(next));
}

// Returns whether the first pass of the next step may begin before the host knows this step's sums. It may not begin if
// the loss scale is dynamic, because the scale may still change. It may not begin if the model carries state, because
// the pass would overwrite the state that this step's checkpoint needs. It may not begin on a CPU, because a CPU has
// not updated the weights yet. It may not begin in a pipeline, because its passes wait for the neighbouring stages. It
// may not begin if ranks share the update, because the weights of the other ranks have not arrived yet. Its input must
// have been staged.
bool Trainer::may_run_ahead() const {
  return backend_.on_device() && stages_ == nullptr && staged_.has_value() && loss_scale_.fixed() &&
         !plan_.carries_state && !optimizer_.is_shared();
}

void Trainer::stage_next() {
  staged_ = loader_.next();
  ++staged_of_step_;
  program_->stage({staged_->inputs.data(), staged_->targets.data()});
}

PassContext Trainer::pass_context(const MicroBatch& batch, const Position& position) {
  PassContext context;
  context.gradient_scale = loss_scale_.value() / static_cast<float>(targets_);
  const BatchPlan batch_plan = batch_at(position);
  context.statistic_scale =
      1.0f / static_cast<float>(batch_plan.workers * batch_plan.span / (alone_ ? batch_plan.ranks : 1));
  context.group_ranks = group_ranks_.get();
  context.dropout_key = dropout_key_;
  context.step = position.step;
  context.first_row = batch.first_row;
  if (plan_.carries_state) {
    const std::int64_t rows = plan_.batch.micro_batch * part_.graph.state_size();
    context.state = carried_state_.data() + batch.micro_step * rows;
    if (batch.resets_state) std::fill_n(context.state, rows, 0.0f);
  }
  return context;
}

void Trainer::start_update(StepReport& report) {
  const double rate = scheduled_rate();
  report.learning_rate = rate;
  report.loss_scale = loss_scale_.value();
  const std::int64_t every = plan_.experiment.optimizer.record_trust_every_steps;
  const UpdateStep step{.rate = rate,
                        .epochs = plan_.schedule.epochs(position_),
                        .samples = static_cast<double>(report.samples),
                        .decay_factor = decay_factor_at(plan_, position_, report.samples),
                        .reports_trust = every > 0 && (position_.step + 1) % every == 0,
                        .adascale = adascale_ ? adascale_->next(part_.parameters.size()) : std::nullopt};
  const bool measures_groups = noise_groups_ && measures_noise(next_position());
  Program* const copies = optimizer_.is_shared() ? nullptr : program_.get();  // null: share_weights() renews them
  optimizer_.start(*weights_, *gradients_, step, loss_scale_.value(), norm_momentum(plan_.experiment), copies);
  if (measures_groups) optimizer_.fetch_norms();  // must come before a device gets its next pass
}

// The reduced values have the same bits on all ranks. All ranks therefore continue, all skip the update, or all stop.
// If the loss is not finite, no weight has changed: a CPU has not begun the update, and a device has found NaN in the
// gradient and skipped it.
void Trainer::finish_update(StepReport& report, const StepCounters& counters, std::int64_t targets) {
  report.requests = counters.requests();
  report.loss = counters.loss() / static_cast<double>(targets);
  report.accuracy = counters.correct() / static_cast<double>(targets);
  report.accuracy5 = counters.correct5() / static_cast<double>(targets);
  if (std::isfinite(report.loss)) {
    UpdateResult result = optimizer_.finish();
    report.gradient_norm = result.gradient_norm;
    report.applied = result.applied;
    note_gain(report, result);
    if (result.applied && measures_noise(next_position())) report.noise = measured_noise(report, counters, targets);
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
  program_->set_weights(*weights_);
}

void Trainer::note_gain(StepReport& report, const UpdateResult& result) {
  if (!adascale_) return;
  adascale_->add(result);
  report.scale_invariant_steps = adascale_->steps();
  if (!result.applied) return;
  report.gain = result.gain;
  report.learning_rate *= result.gain;
}

// Each small batch has added loss_scale / n x its mean gradient G_b to the sum, where n is the number of small batches
// over all ranks. So the mean of |G_b|^2 is n^2 / n x the sum of the squared norms of what the small batches have added
// (without the loss scale). If the last small batch is smaller than the others, n is not a whole number.
NoiseReport Trainer::measured_noise(const StepReport& report, const StepCounters& counters, std::int64_t targets) {
  const double small_batch = mean_small_batch(report.samples, plan_.batch.small_batch);
  const double n = static_cast<double>(report.samples) / small_batch;
  const double scale = static_cast<double>(report.loss_scale);
  const NoiseEstimate estimate = estimate_noise({.batch = report.samples,
                                                 .small_batch = small_batch,
                                                 .squared_norm = report.gradient_norm * report.gradient_norm,
                                                 .small_squared_norm = n * counters.small_norms() / (scale * scale)});
  const NoiseScale::Step step{.estimate = estimate,
                              .samples = next_position().samples,
                              .batch = report.samples,
                              .small_batch = plan_.batch.small_batch,
                              .learning_rate = report.learning_rate,
                              .targets_per_sample = static_cast<double>(targets) / static_cast<double>(report.samples),
                              .is_rest = report.samples < course_.batch_at(position_)};
  noise_scale_.add(step);
  if (noise_groups_) measure_groups(step, small_batch, counters, scale);
  return {.estimate = estimate,
          .scale = noise_scale_.ratio(),
          .targets_per_sample = noise_scale_.targets_per_sample(),
          .is_text = !plan_.train.is_image(),
          .change = noise_scale_.change(),
          .groups = scales_of_kinds()};
}

// Only kinds are reported, because they are few. The scales of all tensors would be longer than the rest of a record.
std::vector<std::pair<std::string, double>> Trainer::scales_of_kinds() const {
  std::vector<std::pair<std::string, double>> scales;
  if (plan_.experiment.noise.groups != "kind") return scales;
  for (std::size_t i = 0; i < noise_groups_->size(); ++i)
    scales.emplace_back(noise_groups_->name(i), noise_groups_->scale(i).ratio().value);
  return scales;
}

void Trainer::measure_groups(const NoiseScale::Step& whole, double small_batch, const StepCounters& counters,
                             double scale) {
  const double n = static_cast<double>(whole.batch) / small_batch;
  std::vector<double> big = noise_groups_->by_group(optimizer_.gradient_norms());
  const std::span<const double> sums = counters.small_norms_of_groups();
  std::vector<double> small(sums.begin(), sums.end());
  for (double& norm : big) norm /= scale * scale;
  for (double& norm : small) norm *= n / (scale * scale);
  noise_groups_->add(whole, small_batch, big, small);
}

}  // namespace ringtrain
