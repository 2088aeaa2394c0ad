// The part of the training set that data.share keeps. It is a pure function of the seed, so all ranks and resumed runs
// have the same part. It is nested: a smaller share of the same data set has no other samples.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/loader.h"

namespace ringtrain {

// Returns the number of samples, or of characters of running text, that a plan reads: all of them in an evaluation,
// otherwise share x total, rounded, and at least 1.
std::int64_t used_of(const DatasetIndex& index, const LoaderPlan& plan);

// Returns the first character of the kept window of `used` characters, u (total - used) with u in (0, 1] from the seed.
// A shorter window lies in a longer one.
std::int64_t first_used(std::uint64_t seed, std::int64_t total, std::int64_t used);

// Returns the record with number `position` of the fixed random order of all `total` records. A share keeps the first
// ones of this order.
std::int64_t used_record(std::uint64_t seed, std::int64_t total, std::int64_t position);

// Returns the samples that are kept of images with these labels, `used` of them, in increasing order. Each class has
// its part of them, to within one. All samples have one order: a sample whose place in a random order of its class of n
// is r comes at (r + u) / n, with u in (0, 1] drawn for the class. The first `used` of this order are kept.
std::vector<std::uint32_t> used_images(std::uint64_t seed, std::span<const std::int32_t> labels, std::int64_t used);

// Gives the plan the samples of its share, if the data set has images and the plan does not use all of them. Reads all
// labels. The samples take 4 bytes each; 20 bytes for each image of the data set are needed meanwhile. Throws Error if
// there are more images than 32 bits can count.
void choose_images(const Dataset& dataset, LoaderPlan& plan);

}  // namespace ringtrain
