// Pass 1 reads and checks every image and makes its record. All ranks get the sizes and checksums of all records.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "data_prep/images/convert.h"

namespace ringtrain {

struct Examined {
  std::uint64_t bytes = 0;  // size of the record
  std::uint32_t crc32c = 0;
  std::int32_t height = 0, width = 0, channels = 0;
  std::int16_t brightest =
      -1;  // largest value of pixels that were found as such; -1: of a file, which was not looked at
  bool broken = false;
  bool resized = false, turned = false, with_alpha = false, deep = false, deep_and_dark = false;  // see ImageRecord
};

struct ImageNote {
  std::uint64_t split = 0, index = 0;
  std::string text;         // "path: reason"
  std::string reason = {};  // of a broken image
};

struct Examination {
  std::array<std::vector<Examined>, 2> items;                   // same order as the listing; on all ranks
  std::vector<ImageNote> broken, converted, doubtful;           // in the listing's order; on rank 0
  PixelSums sums;                                               // sums over the training split; on all ranks
  std::array<std::vector<std::vector<std::uint8_t>>, 2> cache;  // records that this rank kept; otherwise empty
};

// Maps positions on disk to indices in the listing, broken images included. Shards are pieces of this random order.
std::vector<std::int64_t> disk_order(std::size_t count, SplitIndex split, std::uint64_t seed);

// Runs pass 1. All ranks must call it with the same listing.
Examination examine_images(const ImageOptions& options, const RecordOptions& records, const ImageListing& listing,
                           const ListedImageSource& source, int threads, const Ranks& ranks);

}  // namespace ringtrain
