// Pass 2 writes the shards of one split. ImageShardWriter writes one of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/hdf5.h"
#include "data_prep/common/shard_writer.h"
#include "data_prep/images/class_list.h"
#include "data_prep/images/examine.h"

namespace ringtrain {

// The attributes that all shards of an image split have, in addition to those of SplitDescription.
struct ImageSetDescription {
  bool raw = false;
  std::int64_t height = 0, width = 0, channels = 3;  // of raw records; height and width in pixels
  ClassList classes;
  std::vector<double> mean, std;  // 3 each, of pixels / 255
};

// The tables of one shard, with a value per record in the shard's order.
struct ImageColumns {
  std::vector<std::uint64_t> offsets;  // records + 1 values; raw shards use them too, but do not store them
  std::vector<std::int32_t> labels, shapes;
  std::vector<std::uint64_t> sample_ids;
  std::vector<std::uint32_t> crc32c;
  std::vector<std::string> keys;
};

// Writes one shard of kind "image". The sizes of all records are known when the shard is created. The bytes may then
// come from several threads in any order.
class ImageShardWriter {
 public:
  ImageShardWriter(const SplitDescription& split, const ImageSetDescription& set, std::int64_t shard,
                   const std::string& path, const ImageColumns& columns);
  ~ImageShardWriter();
  ImageShardWriter(const ImageShardWriter&) = delete;
  ImageShardWriter& operator=(const ImageShardWriter&) = delete;
  // Writes bytes [offset, offset + bytes.size()) of `images`. May be called from any thread.
  void write(std::uint64_t offset, std::span<const std::uint8_t> bytes) const;
  void finish();  // syncs, writes `complete`, syncs

 private:
  h5::File file_;
  int descriptor_ = -1;
  std::uint64_t address_ = 0;
};

// Returns true if the file is a finished shard, and a conversion with this description would write the same shard.
bool is_finished_shard(const std::string& path, const SplitDescription& split, std::int64_t shard);

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
