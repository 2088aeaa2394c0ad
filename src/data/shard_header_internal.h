// Helpers of shard_header.cpp, text_dataset.cpp and image_dataset.cpp. Other files must not include this.
#pragma once

#include <string>

#include "base/error.h"
#include "data/hdf5.h"
#include "data/shard_header.h"

namespace ringtrain {

inline constexpr const char* convert_again = "convert the data again with bin/ringtrain-data, or copy the file again";

[[noreturn]] inline void bad_shard(const std::string& path, const std::string& what,
                                   const std::string& hint = convert_again) {
  throw Error(cat(path, ": ", what), hint);
}

// Returns the byte address of a data set whose bytes lie in this file exactly as memory holds values of `memory_type`,
// and no_byte_offset for other data sets: chunked, filtered, linked or external ones, and those of another byte order.
std::uint64_t byte_address(const h5::File& file, const std::string& dataset, hid_t memory_type);

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
