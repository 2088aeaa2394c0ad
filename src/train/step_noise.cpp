#include "train/step_noise.h"

#include <algorithm>
#include <functional>

#include "run/course.h"
#include "run/fixed_order.h"
#include "run/split.h"

namespace ringtrain {

SmallBatchNorms::SmallBatchNorms(Backend& backend, std::int64_t trained, std::int64_t bucket_elements,
                                 std::int64_t per_step, std::int64_t total_at, bool apart, const NoiseGroups* groups,
                                 std::span<const ElementRange> tensors)
    : apart_(apart),
      bucket_elements_(bucket_elements),
      total_at_(total_at),
      tensor_count_(tensors.size()),
      groups_(groups) {
  const ElementRange whole{0, trained};
  for (std::int64_t begin = 0; begin < trained; begin += bucket_elements)
    add_bucket(backend, {begin, begin + bucket_elements}, groups == nullptr ? std::span(&whole, 1) : tensors);
  if (total_at > 0) total_ = backend.make_norm_total();
  if (per_step > 1 && !apart) before_ = backend.make_vector(trained);
}

// Adds the parts of the tensors that lie in the bucket. A tiny bucket may contain nothing but padding.
void SmallBatchNorms::add_bucket(Backend& backend, ElementRange bucket, std::span<const ElementRange> tensors) {
  std::vector<ElementRange> ranges;
  tensors_.emplace_back();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const ElementRange part{std::max(bucket.begin, tensors[i].begin), std::min(bucket.end, tensors[i].end)};
    if (part.begin >= part.end) continue;
    ranges.push_back(part);
    tensors_.back().push_back(i);
  }
  buckets_.push_back(ranges.empty() ? nullptr : backend.make_range_norms(ranges));
}

void SmallBatchNorms::begin() {
  batches_ = 0;
  earlier_ = {};
}

void SmallBatchNorms::measure(Vector& gradients) {
  if (apart_) {
    for (std::int64_t begin = 0; begin < gradients.size(); begin += bucket_elements_)
      measure_bucket(gradients, begin, 0);
    earlier_.add(measured());
    return;
  }
  for (const auto& bucket : buckets_)
    if (bucket) measure(*bucket, gradients, 0);
  ++batches_;
}

// The last buckets may contain nothing but statistics. They have no norm.
void SmallBatchNorms::measure_bucket(Vector& gradients, std::int64_t begin, std::uintptr_t stream) {
  const auto index = static_cast<std::size_t>(begin / bucket_elements_);
  if (index < buckets_.size() && buckets_[index]) {
    measure(*buckets_[index], gradients, stream);
    buckets_[index]->fetch();
    if (total_) total_->add(*buckets_[index], index == 0, stream);
  }
  if (total_ && total_at_ < begin + bucket_elements_) total_->store(gradients, total_at_, stream);
}

void SmallBatchNorms::measure(RangeNorms& bucket, const Vector& gradients, std::uintptr_t stream) {
  if (before_)
    bucket.measure_change(gradients, *before_, batches_ == 0, stream);
  else
    bucket.measure(gradients, stream);
}

SmallBatchNorms::Sums& SmallBatchNorms::Sums::operator+=(const Sums& other) {
  all += other.all;
  std::ranges::transform(of_groups, other.of_groups, of_groups.begin(), std::plus());
  return *this;
}

// Returns the sums of the norms that the buckets hold now.
SmallBatchNorms::Sums SmallBatchNorms::measured() {
  Sums sums;
  std::vector<double> of_tensors(tensor_count_);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (!buckets_[b]) continue;
    const std::span<const double> norms = buckets_[b]->values();
    for (std::size_t i = 0; i < norms.size(); ++i) {
      sums.all += norms[i];
      if (groups_ != nullptr) of_tensors[tensors_[b][i]] += norms[i];
    }
  }
  if (groups_ != nullptr) sums.of_groups = groups_->by_group(of_tensors);
  return sums;
}

SmallBatchNorms::Sums SmallBatchNorms::sums() {
  if (!apart_) return measured();
  TreeSum<Sums> all = earlier_;
  all.add(measured());
  return all.total();
}

StepNoise::StepNoise(const RunPlan& plan, Backend& backend, const ParameterTable& part, Optimizer& optimizer)
    : plan_(plan),
      optimizer_(optimizer),
      scale_(plan.noise_half_life),
      follower_(plan.experiment.batch.follow_noise, plan.patience, plan.experiment.batch.largest) {
  if (plan.adascale_times > 0)
    adascale_.emplace(plan.adascale_times, static_cast<double>(plan.batch.global),
                      static_cast<double>(plan.batch.small_batch));
  if (!plan.measures_noise) return;
  const std::string& by = plan.experiment.noise.groups;
  if (by != "none") groups_.emplace(plan.parameters, by, plan.noise_half_life);
  std::vector<ElementRange> tensors;
  for (const UpdateRange& range : optimizer.ranges()) tensors.push_back({range.begin, range.end});
  small_norms_.emplace(backend, part.trained(), bucket_elements(plan, backend.on_device()),
                       largest_batch(plan).small_batches(), sums_small_norms(plan) ? part.size() : 0,
                       has_fixed_order(plan.experiment), groups_ ? &*groups_ : nullptr, tensors);
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

SmallBatchNorms::Sums StepNoise::small_norm_sums(bool measures) {
  if (measures) return small_norms_->sums();
  return {.of_groups = std::vector<double>(groups_ ? groups_->size() : 0)};
}

// Each small batch has added loss_scale / n x its mean gradient G_b to the sum, where n is the number of small batches
// over all ranks. So the mean of |G_b|^2 is n^2 / n x the sum of the squared norms of what the small batches have added
// (without the loss scale). If the last small batch is smaller than the others, n is not a whole number.
NoiseReport StepNoise::add(const StepReport& report, const SmallBatchNorms::Sums& small_norms, std::int64_t targets,
                           std::int64_t samples, bool is_rest) {
  const double small_batch = mean_small_batch(report.samples, plan_.batch.small_batch);
  const double n = static_cast<double>(report.samples) / small_batch;
  const double scale = static_cast<double>(report.loss_scale);
  const NoiseEstimate estimate = estimate_noise({.batch = report.samples,
                                                 .small_batch = small_batch,
                                                 .squared_norm = report.gradient_norm * report.gradient_norm,
                                                 .small_squared_norm = n * small_norms.all / (scale * scale)});
  const NoiseScale::Step step{.estimate = estimate,
                              .samples = samples,
                              .batch = report.samples,
                              .small_batch = plan_.batch.small_batch,
                              .learning_rate = report.learning_rate,
                              .targets_per_sample = static_cast<double>(targets) / static_cast<double>(report.samples),
                              .is_rest = is_rest};
  scale_.add(step);
  if (groups_) add_groups(step, small_batch, small_norms.of_groups, scale);
  NoiseReport noise{.estimate = estimate,
                    .scale = scale_.ratio(),
                    .targets_per_sample = scale_.targets_per_sample(),
                    .is_text = !plan_.train.is_image(),
                    .change = scale_.change()};
  // Only kinds are reported, because they are few. The scales of all tensors would be longer than the rest of a record.
  if (plan_.experiment.noise.groups == "kind")
    for (std::size_t i = 0; i < groups_->size(); ++i)
      noise.groups.emplace_back(groups_->name(i), groups_->scale(i).ratio().value);
  return noise;
}

void StepNoise::add_groups(const NoiseScale::Step& whole, double small_batch, std::vector<double> small_norms,
                           double scale) {
  const double n = static_cast<double>(whole.batch) / small_batch;
  std::vector<double> big_norms = groups_->by_group(optimizer_.gradient_norms());
  for (double& norm : big_norms) norm /= scale * scale;
  for (double& norm : small_norms) norm *= n / (scale * scale);
  groups_->add(whole, small_batch, big_norms, small_norms);
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
