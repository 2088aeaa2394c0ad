// The part of verify.h that checks images.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/shard_header.h"
#include "data_prep/verify.h"

namespace ringtrain {

// The data by which two splits are compared.
struct ImageSplitFacts {
  struct Content {
    std::uint32_t crc32c = 0;
    std::uint64_t bytes = 0;
    std::uint32_t shard = 0, record = 0;
  };
  std::vector<Content> contents;
  std::vector<std::uint64_t> sample_ids;  // sorted
};

// Checks every record: checksum, decoding, shape, label and id. `whole` says whether all shards of the split are there.
ImageSplitFacts verify_image_split(const std::string& prefix, const std::vector<ShardHeader>& headers, bool whole,
                                   Verification& result);

// Adds faults to `result` if the splits have different classes or a sample id in common. Adds warnings if the splits
// come from two conversions, or if an image is in both.
void compare_image_splits(const std::vector<ShardHeader>& train, const ImageSplitFacts& train_facts,
                          const std::vector<ShardHeader>& validation, const ImageSplitFacts& validation_facts,
                          Verification& result);

}  // namespace ringtrain
