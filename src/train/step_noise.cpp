#include "train/step_noise.h"

namespace ringtrain {

StepNoise::StepNoise(const RunPlan& plan)
    : plan_(plan),
      scale_(plan.noise_half_life),
      follower_(plan.experiment.batch.follow_noise, plan.patience, plan.experiment.batch.largest) {
  const std::string& by = plan.experiment.noise.groups;
  if (plan.measures_noise && by != "none") groups_.emplace(plan.parameters, by, plan.noise_half_life);
  if (plan.adascale_times > 0)
    adascale_.emplace(plan.adascale_times, static_cast<double>(plan.batch.global),
                      static_cast<double>(plan.batch.small_batch));
}

std::map<std::string, NoiseScale::State> StepNoise::fresh_groups() const {
  std::map<std::string, NoiseScale::State> groups;
  for (std::size_t i = 0; groups_ && i < groups_->size(); ++i) groups[groups_->name(i)] = {};
  return groups;
}

void StepNoise::save(NoiseState& state) const {
  state.noise = scale_.state();
  for (std::size_t i = 0; groups_ && i < groups_->size(); ++i)
    state.noise_groups[groups_->name(i)] = groups_->scale(i).state();
  if (adascale_) state.adascale = adascale_->state();
  state.batch_small_since = follower_.small_since();
}

void StepNoise::resume(const NoiseState& state) {
  scale_.resume(state.noise);
  for (std::size_t i = 0; groups_ && i < groups_->size(); ++i)
    groups_->scale(i).resume(state.noise_groups.at(groups_->name(i)));
  if (adascale_) adascale_->resume(state.adascale);
  follower_.resume(state.batch_small_since);
}

bool StepNoise::measures(std::int64_t samples, const Position& next) const {
  return plan_.measures_noise && samples > plan_.batch.small_batch &&
         next.step % plan_.experiment.noise.every_steps == 0;
}

std::int64_t StepNoise::next_batch(std::int64_t batch, const StepReport& report, std::int64_t samples) {
  if (plan_.experiment.batch.follow_noise == 0 || !report.noise) return batch;
  return follower_.next(batch, report.noise->scale, samples);
}

// Each small batch has added loss_scale / n x its mean gradient G_b to the sum, where n is the number of small batches
// over all ranks. So the mean of |G_b|^2 is n^2 / n x the sum of the squared norms of what the small batches have added
// (without the loss scale). If the last small batch is smaller than the others, n is not a whole number.
NoiseReport StepNoise::add(const StepReport& report, const StepCounters& counters, const Measured& measured) {
  const double small_batch = mean_small_batch(report.samples, plan_.batch.small_batch);
  const double n = static_cast<double>(report.samples) / small_batch;
  const double scale = static_cast<double>(report.loss_scale);
  const NoiseEstimate estimate = estimate_noise({.batch = report.samples,
                                                 .small_batch = small_batch,
                                                 .squared_norm = report.gradient_norm * report.gradient_norm,
                                                 .small_squared_norm = n * counters.small_norms / (scale * scale)});
  const NoiseScale::Step step{
      .estimate = estimate,
      .samples = measured.samples,
      .batch = report.samples,
      .small_batch = plan_.batch.small_batch,
      .learning_rate = report.learning_rate,
      .targets_per_sample = static_cast<double>(measured.targets) / static_cast<double>(report.samples),
      .is_rest = measured.is_rest};
  scale_.add(step);
  if (groups_) add_groups(step, small_batch, counters, scale, measured.gradient_norms);
  return {.estimate = estimate,
          .scale = scale_.ratio(),
          .targets_per_sample = scale_.targets_per_sample(),
          .is_text = !plan_.train.is_image(),
          .change = scale_.change(),
          .groups = scales_of_kinds()};
}

// Only kinds are reported, because they are few. The scales of all tensors would be longer than the rest of a record.
std::vector<std::pair<std::string, double>> StepNoise::scales_of_kinds() const {
  std::vector<std::pair<std::string, double>> scales;
  if (plan_.experiment.noise.groups != "kind") return scales;
  for (std::size_t i = 0; i < groups_->size(); ++i)
    scales.emplace_back(groups_->name(i), groups_->scale(i).ratio().value);
  return scales;
}

void StepNoise::add_groups(const NoiseScale::Step& whole, double small_batch, const StepCounters& counters,
                           double scale, std::span<const double> gradient_norms) {
  const double n = static_cast<double>(whole.batch) / small_batch;
  std::vector<double> big = groups_->by_group(gradient_norms), small = counters.small_norms_of_groups;
  for (double& norm : big) norm /= scale * scale;
  for (double& norm : small) norm *= n / (scale * scale);
  groups_->add(whole, small_batch, big, small);
}

void StepNoise::note_gain(StepReport& report, const UpdateResult& result) {
  if (!adascale_) return;
  adascale_->add(result);
  report.scale_invariant_steps = adascale_->steps();
  if (!result.applied) return;
  report.gain = result.gain;
  report.learning_rate *= result.gain;
}

}  // namespace ringtrain
