// Pass 2: the shards of one split.
#pragma once

#include <cstdint>
#include <vector>

#include "data_prep/images/examine.h"
#include "data_prep/images/shard_writer.h"

namespace ringtrain {

struct SplitPlan {
  SplitIndex index = train_split;
  SplitDescription description;
  std::vector<std::int64_t> order;        // position on disk -> index in the listing; no broken ones
  std::vector<std::uint64_t> sample_ids;  // by index in the listing
};

// Ids of kept images count in the listing's order; those of the validation split begin here, so that they never meet
// those of the training split, even when the splits were converted one by one.
inline constexpr std::uint64_t first_validation_id = std::uint64_t{1} << 40;

SplitPlan plan_split(SplitIndex split, const ImageOptions& options, const Examination& examination);

// This rank's shards go to <name>.tmp, except those that are there already, finished. Every rank has its own run of
// shards. Throws Error when an image changed since pass 1.
void write_shards(const SplitPlan& plan, const ImageSetDescription& set, const RecordOptions& records,
                  const ImageListing& listing, const ListedImageSource& source, Examination& examination, int threads,
                  const Ranks& ranks);

}  // namespace ringtrain
