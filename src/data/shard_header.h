// The checked header of one file of a data set. The reader and the verifier both start from it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace ringtrain {

struct ShardHeader {
  std::string path, kind, split, dataset_name, dataset_uuid;
  std::int64_t shard_index = 0, num_shards = 0;
  std::int64_t count = 0, total = 0;  // samples or characters (running text) in this shard, in all shards
  std::uint64_t byte_offset = no_byte_offset, file_bytes = 0;  // position of tokens or images; length of the file
  std::uint32_t start_crc32c = 0;                              // see start_checksum()
  // For kind "text":
  TextFormat text;
  std::vector<std::uint32_t> crc32c;  // one per block of tokens; empty: the file has no checksums
  // For kind "image":
  ImageFormat image;
  ImageArrays arrays;

  bool is_image() const { return kind == "image"; }
  // For text:
  std::int64_t row_bytes() const { return text.running_text ? 1 : text.context_length + 1; }
  std::int64_t bytes() const { return count * row_bytes(); }
};

// Reads and checks the header. Throws Error with the file and the attribute or data set.
ShardHeader read_shard_header(const std::string& path);

// Throws Error with the first record whose bytes are not inside the images. `offsets` has one value more than there are
// records.
void check_image_offsets(const std::string& path, std::span<const std::uint64_t> offsets, std::int64_t image_bytes);

// Throws Error if two headers do not belong to one data set, or if their numbers do not add up.
void check_shards_agree(const std::vector<ShardHeader>& headers);

// Makes the index of the shards with these headers. There must be one header or more.
DatasetIndex make_dataset_index(const std::string& prefix, const std::vector<ShardHeader>& headers);

}  // namespace ringtrain
