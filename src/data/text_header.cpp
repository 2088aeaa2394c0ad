// Reads the part of a shard's header that describes its tokens.
#include "data/shard_header_internal.h"

namespace ringtrain {
namespace {

constexpr std::int64_t largest_vocabulary = 254;  // symbols; the limit of the file format, whose ids are u8

void read_tokens_layout(const h5::File& file, ShardHeader& header) {
  if (!file.has("tokens")) bad_shard(file.path(), "data set 'tokens' is missing");
  if (const std::string type = file.type("tokens"); type != "u8") {
    bad_shard(file.path(), cat("data set 'tokens' has the wrong type: expected u8, found ", type));
  }
  const h5::Shape shape = file.shape("tokens");
  if (shape.size() != 1 && shape.size() != 2) {
    bad_shard(file.path(),
              cat("data set 'tokens' has ", shape.size(), " dimensions, expected 1 (running text) or 2 (names)"));
  }
  header.running_text = shape.size() == 1;
  if (shape[0] != header.count) {
    bad_shard(file.path(), cat("attribute 'num_samples' is ", header.count, ", but 'tokens' holds ", shape[0]));
  }
  if (!header.running_text) {
    header.context_length = file.read_integer("tokens", "context_length");
    if (header.context_length < 1 || shape[1] - 1 != header.context_length) {
      bad_shard(file.path(), cat("'tokens' has rows of ", shape[1], " symbols, but context_length is ",
                                 header.context_length, " (a row holds context_length + 1)"));
    }
    if (const std::string side = file.read_string("tokens", "pad_side"); side != "left") {
      bad_shard(file.path(), cat("attribute 'pad_side' is '", side, "', expected 'left'"));
    }
  }
  header.byte_offset = byte_address(file, "tokens", H5T_NATIVE_UINT8);
}

void read_vocabulary(const h5::File& file, ShardHeader& header) {
  header.vocabulary = file.read_strings("tokens", "vocab");
  for (std::string& symbol : header.vocabulary) {
    if (symbol.empty()) symbol.assign(1, '\0');  // strings of fixed length cannot hold the symbol NUL
  }
  const auto size = static_cast<std::int64_t>(header.vocabulary.size());
  if (size < 1 || size > largest_vocabulary) {
    bad_shard(file.path(), cat("attribute 'vocab' has ", size, " symbols, expected 1 to ", largest_vocabulary));
  }
  const auto optional_id = [&](const std::string& name) {
    const std::int64_t id = file.has_attribute("tokens", name) ? file.read_integer("tokens", name) : -1;
    if (id < -1 || id >= size)
      bad_shard(file.path(), cat("attribute '", name, "' is ", id, ", but there are ", size, " symbols"));
    return id;
  };
  header.pad_id = optional_id("pad_id");
  header.stop_id = optional_id("stop_id");
  if (!header.running_text && header.pad_id < 0) bad_shard(file.path(), "attribute 'pad_id' of 'tokens' is missing");
  header.lowercase = file.has_attribute("tokens", "lowercase") && file.read_integer("tokens", "lowercase") != 0;
}

void read_checksums(const h5::File& file, ShardHeader& header) {
  if (!file.has("crc32c")) return;
  if (file.has_attribute("crc32c", "block_bytes")) header.crc_block_bytes = file.read_integer("crc32c", "block_bytes");
  if (header.crc_block_bytes < 1 || header.crc_block_bytes > (std::int64_t{1} << 30)) {
    bad_shard(file.path(), cat("attribute 'block_bytes' of 'crc32c' is ", header.crc_block_bytes));
  }
  const std::int64_t blocks = (header.bytes() + header.crc_block_bytes - 1) / header.crc_block_bytes;
  if (const std::string type = file.type("crc32c"); type != "u32")
    bad_shard(file.path(), cat("data set 'crc32c' has the wrong type: expected u32, found ", type));
  if (const h5::Shape shape = file.shape("crc32c"); shape != h5::Shape{blocks}) {
    bad_shard(file.path(), cat("data set 'crc32c' has ", shape.empty() ? 0 : shape[0], " values, expected ", blocks,
                               " (one per ", header.crc_block_bytes, " bytes of 'tokens')"));
  }
  header.crc32c = file.read<std::uint32_t>("crc32c");
}

}  // namespace

void read_text_header(const h5::File& file, ShardHeader& header) {
  read_tokens_layout(file, header);
  read_vocabulary(file, header);
  read_checksums(file, header);
  if (header.byte_offset != no_byte_offset &&
      (header.byte_offset > header.file_bytes ||
       static_cast<std::uint64_t>(header.bytes()) > header.file_bytes - header.byte_offset)) {
    bad_shard(file.path(), cat("is truncated: 'tokens' ends at byte ",
                               header.byte_offset + static_cast<std::uint64_t>(header.bytes()), ", the file at ",
                               header.file_bytes));
  }
}

void check_text_agrees(const ShardHeader& header, const ShardHeader& first) {
  expect_same(header, first, header.running_text, first.running_text, "tokens' dimensions");
  expect_same(header, first, header.context_length, first.context_length, "context_length");
  expect_same(header, first, header.pad_id, first.pad_id, "pad_id");
  expect_same(header, first, header.stop_id, first.stop_id, "stop_id");
  expect_same(header, first, header.crc_block_bytes, first.crc_block_bytes, "block_bytes");
  if (header.vocabulary != first.vocabulary)
    bad_shard(header.path, cat("attribute 'vocab' differs from that of ", first.path));
}

}  // namespace ringtrain
