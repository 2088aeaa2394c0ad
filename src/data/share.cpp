#include "data/share.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "data/image_dataset.h"
#include "data/sampler.h"

namespace ringtrain {

std::int64_t used_of(const DatasetIndex& index, const LoaderPlan& plan) {
  if (plan.evaluation || plan.share >= 1) return index.total;
  return std::max<std::int64_t>(1, std::llround(plan.share * static_cast<double>(index.total)));
}

std::int64_t first_used(std::uint64_t seed, std::int64_t total, std::int64_t used) {
  const double place = random_uniform(random_key(seed, RandomPurpose::share), 0);
  return static_cast<std::int64_t>(place * static_cast<double>(total - used));
}

std::int64_t used_record(std::uint64_t seed, std::int64_t total, std::int64_t position) {
  return EpochOrder(random_key(seed, RandomPurpose::share), 0, total)(position);
}

std::vector<std::uint32_t> used_images(std::uint64_t seed, std::span<const std::int32_t> labels, std::int64_t used) {
  const std::uint64_t key = random_key(seed, RandomPurpose::share);
  std::vector<std::int64_t> sizes;
  for (const std::int32_t label : labels) {
    if (label >= std::ssize(sizes)) sizes.resize(static_cast<std::size_t>(label) + 1);
    ++sizes[static_cast<std::size_t>(label)];
  }
  struct Class {
    EpochOrder order;
    double begin = 0, size = 0;
    std::int64_t next = 0;
  };
  std::vector<Class> classes;
  for (std::size_t c = 0; c < sizes.size(); ++c)
    classes.push_back({EpochOrder(key, static_cast<std::int64_t>(c), std::max<std::int64_t>(1, sizes[c])),
                       random_uniform(key, c), static_cast<double>(sizes[c])});
  std::vector<std::pair<double, std::uint32_t>> places;
  places.reserve(labels.size());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    Class& its = classes[static_cast<std::size_t>(labels[i])];
    const auto place = static_cast<double>(its.order(its.next++));
    places.emplace_back((place + its.begin) / its.size, static_cast<std::uint32_t>(i));
  }
  std::ranges::nth_element(places, places.begin() + used);
  std::vector<std::uint32_t> kept(static_cast<std::size_t>(used));
  std::ranges::transform(std::span(places).first(kept.size()), kept.begin(),
                         [](const auto& one) { return one.second; });
  std::ranges::sort(kept);
  return kept;
}

void choose_images(const Dataset& dataset, LoaderPlan& plan) {
  const DatasetIndex& index = dataset.index();
  const auto* images = dynamic_cast<const ImageDataset*>(&dataset);
  if (images == nullptr || plan.used_images || used_of(index, plan) == index.total) return;
  if (index.total > std::numeric_limits<std::uint32_t>::max())
    throw Error(cat("data.share is ", plan.share, ", but ", index.prefix, " has ", index.total,
                    " images, more than 32 bits can count"),
                "train with data.share=1, or convert fewer images");
  std::vector<std::int32_t> labels(static_cast<std::size_t>(index.total));
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = images->record(static_cast<std::int64_t>(i)).label;
  plan.used_images =
      std::make_shared<const std::vector<std::uint32_t>>(used_images(plan.seed, labels, used_of(index, plan)));
}

}  // namespace ringtrain
