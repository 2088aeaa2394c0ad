// The checked header of one file of a data set. The reader and the verifier both start from it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/dataset.h"
#include "data/hdf5.h"

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

// Returns the shards of <prefix> in order: <prefix>-00000-of-NNNNN.h5 ..., or the one file if the prefix ends in .h5.
// Throws Error if there is none, if one is missing, or if there are shards of two conversions.
std::vector<std::string> find_shards(const std::string& prefix);

// Returns "names-train-00002-of-00004.h5" for ("names-train", 2, 4).
std::string shard_path(const std::string& prefix, std::int64_t shard_index, std::int64_t num_shards);

// Reads the index and the number of shards from the name of a shard of `prefix`. Returns false for other names.
bool parse_shard_name(const std::string& prefix, const std::string& path, std::int64_t& shard_index,
                      std::int64_t& num_shards);

// Throws Error with the first record whose bytes are not inside the images. `offsets` has one value more than there are
// records.
void check_image_offsets(const std::string& path, std::span<const std::uint64_t> offsets, std::int64_t image_bytes);

// Throws Error if two headers do not belong to one data set, or if their numbers do not add up.
void check_shards_agree(const std::vector<ShardHeader>& headers);

// Makes the index of the shards with these headers. There must be one header or more.
DatasetIndex make_dataset_index(const std::string& prefix, const std::vector<ShardHeader>& headers);

// Helpers of shard_header.cpp, text_dataset.cpp and image_dataset.cpp.

inline constexpr const char* convert_again = "convert the data again with bin/ringtrain-data, or copy the file again";

[[noreturn]] inline void bad_shard(const std::string& path, const std::string& what,
                                   const std::string& hint = convert_again) {
  throw Error(cat(path, ": ", what), hint);
}

// Throws Error if there is no such data set, or if it has another type: "u8".
void expect_type(const h5::File& file, const std::string& dataset, const std::string& expected);

// Returns the byte address of a data set whose bytes lie in this file exactly as memory holds values of `memory_type`,
// and no_byte_offset for other data sets: chunked, filtered, linked or external ones, and those of another byte order.
std::uint64_t byte_address(const h5::File& file, const std::string& dataset, hid_t memory_type);

// Throws Error if the `bytes` bytes of a data set at this address are not inside the file.
void expect_inside(const ShardHeader& header, const std::string& dataset, std::uint64_t address, std::int64_t bytes);

template <class Value>
void expect_same(const ShardHeader& header, const ShardHeader& first, const Value& value, const Value& expected,
                 const std::string& name) {
  if (value == expected) return;
  bad_shard(header.path, cat("attribute '", name, "' is ", value, ", but ", first.path, " says ", expected),
            "these files come from two conversions: convert the data again");
}

// These functions read the fields of one kind of data into a header that has the common fields already.
void read_text_header(const h5::File& file, ShardHeader& header);
void read_image_header(const h5::File& file, ShardHeader& header);
// These functions throw Error if the fields of one kind of data differ from those of the first shard.
void check_text_agrees(const ShardHeader& header, const ShardHeader& first);
void check_image_agrees(const ShardHeader& header, const ShardHeader& first);

}  // namespace ringtrain
