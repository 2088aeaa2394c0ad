// Writes shards of kind "text" (see README.md here): streamed, checksummed, under a temporary name until all are done.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/hdf5.h"

namespace ringtrain {

// 128 bits of what went into a data set: the same content and options give the same dataset_uuid, hence the same bytes.
class ContentHash {
 public:
  void add(std::string_view bytes);
  void add(std::uint64_t word);
  std::string uuid() const;

 private:
  std::uint64_t a_ = 0, b_ = 0;
};

// The attributes that all shards of one split have.
struct SplitDescription {
  std::string prefix;  // with the split: "data/pets-train"
  std::string split, dataset_name, dataset_uuid, source, license;
  std::uint64_t seed = 0;
  std::int64_t total = 0;  // samples (names) or characters (running text)
  std::int64_t num_shards = 1;
  std::int64_t context_length = 0;  // 0: running text
  std::vector<std::string> vocabulary;
  std::int64_t pad_id = -1, stop_id = -1;
  bool lowercase = false;
};

// Samples [first, last) of shard `shard` of `shards`.
struct ShardRange {
  std::int64_t first, last;
};
ShardRange shard_range(std::int64_t total, std::int64_t shards, std::int64_t shard);

// The files of a conversion. Until commit() they have temporary names; without it the destructor removes them.
class OutputFiles {
 public:
  // Removes what an interrupted conversion left; throws Error when there are data sets at these prefixes and not
  // `force`, when a prefix names a folder, or while another conversion writes there.
  // `resume`: what is there, finished or not, stays for the caller to look at.
  OutputFiles(std::vector<std::string> prefixes, bool force, bool resume = false);
  ~OutputFiles();
  OutputFiles(const OutputFiles&) = delete;
  OutputFiles& operator=(const OutputFiles&) = delete;

  std::string add(const std::string& final_path);  // the temporary path to write to
  // Syncs and renames all, then removes the shards of an earlier conversion that were not replaced.
  void commit();
  std::vector<std::string> matching(bool temporary) const;  // files at the prefixes: temporary or final ones

 private:
  void unlock(bool held);
  std::vector<std::string> prefixes_, finals_;
  std::vector<int> locks_;  // <prefix>.lock, against a second conversion at the same time
  bool committed_ = false;
};

// The attributes of '/' that all kinds have, without `complete`.
void write_root_attributes(h5::File& file, const SplitDescription& split, const std::string& kind, std::int64_t shard,
                           std::int64_t count, std::int64_t num_classes);

// One file. Rows are appended in order; finish() writes the checksums and, last, `complete`.
class ShardWriter {
 public:
  ShardWriter(const SplitDescription& split, std::int64_t shard, OutputFiles& files);
  // Running text leaves the last two empty.
  void append(std::span<const std::uint8_t> tokens, std::span<const std::uint64_t> sample_ids,
              std::span<const std::uint32_t> name_index);
  void write_names(std::span<const std::uint8_t> bytes, std::span<const std::uint64_t> offsets);
  void finish();
  ShardRange range() const { return range_; }

 private:
  void make_dataset(const std::string& name, hid_t type, const h5::Shape& shape);
  void append_to(const std::string& name, hid_t type, std::int64_t first, std::int64_t count, const void* values);

  const SplitDescription& split_;
  ShardRange range_;
  std::int64_t row_bytes_, written_ = 0, block_filled_ = 0;
  std::uint32_t crc_ = 0;
  std::vector<std::uint32_t> checksums_;
  h5::File file_;
};

}  // namespace ringtrain
