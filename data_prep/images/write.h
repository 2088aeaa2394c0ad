// Pass 2 writes the shards of one split.
#pragma once

#include <cstdint>
#include <vector>

#include "data_prep/images/examine.h"
#include "data_prep/images/shard_writer.h"

namespace ringtrain {

struct SplitPlan {
  SplitIndex index = train_split;
  SplitDescription description;
  std::vector<std::int64_t> order;        // position on disk -> index in the listing; broken images are left out
  std::vector<std::uint64_t> sample_ids;  // by index in the listing
};

// Ids of kept images count up in the listing's order. Those of the validation split begin here. They therefore never
// equal ids of the training split, even if the splits were converted one at a time.
inline constexpr std::uint64_t first_validation_id = std::uint64_t{1} << 40;

SplitPlan plan_split(SplitIndex split, const ImageOptions& options, const Examination& examination);

// Writes this rank's shards to <name>.tmp, except those that are there already and finished. Every rank has a run of
// consecutive shards. Throws Error if an image changed after pass 1.
void write_shards(const SplitPlan& plan, const ImageSetDescription& set, const RecordOptions& records,
                  const ImageListing& listing, const ListedImageSource& source, Examination& examination, int threads,
                  const Ranks& ranks);

}  // namespace ringtrain
