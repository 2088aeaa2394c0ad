#include "train/small_batch_norms.h"

#include <algorithm>
#include <functional>

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

double SmallBatchNorms::sum() {
  return sums().all;
}

std::vector<double> SmallBatchNorms::sums_of_groups() {
  return sums().of_groups;
}

}  // namespace ringtrain
