#include "data/shard_header.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "data/hdf5.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t largest_vocabulary = 254;  // 255 marks targets that do not count
constexpr const char* convert_again = "convert the data again with bin/ringtrain-data, or copy the file again";

// "data/pets" for "data/pets-train": what was given to the converter's --out.
std::string converter_prefix(const std::string& prefix) {
  for (const std::string split : {"-train", "-validation"}) {
    if (prefix.ends_with(split)) return prefix.substr(0, prefix.size() - split.size());
  }
  return prefix;
}

[[noreturn]] void bad(const std::string& path, const std::string& what, const std::string& hint = convert_again) {
  throw Error(cat(path, ": ", what), hint);
}

// The attributes that say that the file is a data set which this program can read.
void check_schema(const h5::File& file) {
  if (!file.has_attribute("/", "schema")) {
    bad(file.path(), "attribute 'schema' of '/' is missing: this is HDF5, but not a ringtrain data set",
        "convert the data with bin/ringtrain-data");
  }
  if (const std::string schema = file.read_string("/", "schema"); schema != "ringtrain") {
    bad(file.path(), cat("attribute 'schema' is '", schema, "', expected 'ringtrain'"));
  }
  const std::vector<std::int64_t> version = file.read_integers("/", "schema_version");
  if (version.size() != 2 || version[0] != 1) {
    std::string text;
    for (const std::int64_t part : version) text += (text.empty() ? "" : ".") + std::to_string(part);
    bad(file.path(), cat("schema version is ", text, "; this program reads 1.x"),
        "use the program that wrote it, or convert the data again");
  }
  if (!file.has_attribute("/", "complete") || file.read_integer("/", "complete") != 1) {
    bad(file.path(), "attribute 'complete' is missing or not 1: the conversion did not finish");
  }
}

void read_tokens_layout(const h5::File& file, ShardHeader& header) {
  if (!file.has("tokens")) bad(file.path(), "data set 'tokens' is missing");
  if (const std::string type = file.type("tokens"); type != "u8") {
    bad(file.path(), cat("data set 'tokens' has the wrong type: expected u8, found ", type));
  }
  const h5::Shape shape = file.shape("tokens");
  if (shape.size() != 1 && shape.size() != 2) {
    bad(file.path(),
        cat("data set 'tokens' has ", shape.size(), " dimensions, expected 1 (running text) or 2 (names)"));
  }
  header.running_text = shape.size() == 1;
  if (shape[0] != header.count) {
    bad(file.path(), cat("attribute 'num_samples' is ", header.count, ", but 'tokens' holds ", shape[0]));
  }
  if (!header.running_text) {
    header.context_length = file.read_integer("tokens", "context_length");
    if (header.context_length < 1 || shape[1] != header.context_length + 1) {
      bad(file.path(), cat("'tokens' has rows of ", shape[1], " symbols, but context_length is ", header.context_length,
                           " (a row holds context_length + 1)"));
    }
    if (const std::string side = file.read_string("tokens", "pad_side"); side != "left") {
      bad(file.path(), cat("attribute 'pad_side' is '", side, "', expected 'left'"));
    }
  }
  const std::lock_guard<std::recursive_mutex> lock(h5::library_lock());
  const h5::Handle dataset(H5Dopen2(file.id(), "tokens", H5P_DEFAULT), H5Dclose);
  const h5::Handle creation(H5Dget_create_plist(dataset.get()), H5Pclose);
  if (H5Pget_layout(creation.get()) == H5D_CONTIGUOUS && H5Pget_external_count(creation.get()) == 0) {
    const haddr_t offset = H5Dget_offset(dataset.get());
    header.byte_offset = offset == HADDR_UNDEF ? no_byte_offset : offset;
  }
}

void read_vocabulary(const h5::File& file, ShardHeader& header) {
  header.vocabulary = file.read_strings("tokens", "vocab");
  for (std::string& symbol : header.vocabulary) {
    if (symbol.empty()) symbol.assign(1, '\0');  // fixed-length strings cannot hold the symbol NUL
  }
  const auto size = static_cast<std::int64_t>(header.vocabulary.size());
  if (size < 1 || size > largest_vocabulary) {
    bad(file.path(), cat("attribute 'vocab' has ", size, " symbols, expected 1 to ", largest_vocabulary));
  }
  const auto optional_id = [&](const std::string& name) {
    const std::int64_t id = file.has_attribute("tokens", name) ? file.read_integer("tokens", name) : -1;
    if (id < -1 || id >= size)
      bad(file.path(), cat("attribute '", name, "' is ", id, ", but there are ", size, " symbols"));
    return id;
  };
  header.pad_id = optional_id("pad_id");
  header.stop_id = optional_id("stop_id");
  if (!header.running_text && header.pad_id < 0) bad(file.path(), "attribute 'pad_id' of 'tokens' is missing");
  header.lowercase = file.has_attribute("tokens", "lowercase") && file.read_integer("tokens", "lowercase") != 0;
}

void read_checksums(const h5::File& file, ShardHeader& header) {
  if (!file.has("crc32c")) return;
  header.crc32c = file.read<std::uint32_t>("crc32c");
  if (file.has_attribute("crc32c", "block_bytes")) header.crc_block_bytes = file.read_integer("crc32c", "block_bytes");
  if (header.crc_block_bytes < 1 || header.crc_block_bytes > (std::int64_t{1} << 30)) {
    bad(file.path(), cat("attribute 'block_bytes' of 'crc32c' is ", header.crc_block_bytes));
  }
  const std::int64_t blocks = (header.bytes() + header.crc_block_bytes - 1) / header.crc_block_bytes;
  if (static_cast<std::int64_t>(header.crc32c.size()) != blocks) {
    bad(file.path(), cat("data set 'crc32c' has ", header.crc32c.size(), " values, expected ", blocks, " (one per ",
                         header.crc_block_bytes, " bytes of 'tokens')"));
  }
}

ShardHeader read_checked(const std::string& path) {
  const h5::File file = h5::File::open(path);
  check_schema(file);
  ShardHeader header;
  header.path = path;
  header.kind = file.read_string("/", "kind");
  if (header.kind != "text")
    bad(path, cat("attribute 'kind' is '", header.kind, "', expected 'text'"), "give a text data set");
  header.split = file.read_string("/", "split");
  header.dataset_name = file.read_string("/", "dataset_name");
  header.dataset_uuid = file.read_string("/", "dataset_uuid");
  header.count = file.read_integer("/", "num_samples");
  header.total = file.read_integer("/", "num_samples_total");
  header.shard_index = file.read_integer("/", "shard_index");
  header.num_shards = file.read_integer("/", "num_shards");
  read_tokens_layout(file, header);
  read_vocabulary(file, header);
  read_checksums(file, header);
  header.file_bytes = fs::file_size(path);
  if (header.byte_offset != no_byte_offset &&
      header.byte_offset + static_cast<std::uint64_t>(header.bytes()) > header.file_bytes) {
    bad(path,
        cat("is truncated: 'tokens' ends at byte ", header.byte_offset + static_cast<std::uint64_t>(header.bytes()),
            ", the file at ", header.file_bytes));
  }
  return header;
}

}  // namespace

ShardHeader read_shard_header(const std::string& path) {
  try {
    return read_checked(path);
  } catch (const Error& error) {
    throw Error(error.what(), error.hint().empty() ? convert_again : error.hint(), error.where());
  }
}

std::string shard_path(const std::string& prefix, std::int64_t shard_index, std::int64_t num_shards) {
  char text[64];
  std::snprintf(text, sizeof text, "-%05lld-of-%05lld.h5", static_cast<long long>(shard_index),
                static_cast<long long>(num_shards));
  return prefix + text;
}

bool parse_shard_name(const std::string& prefix, const std::string& path, std::int64_t& shard_index,
                      std::int64_t& num_shards) {
  const std::string base = fs::path(prefix).filename().string(), name = fs::path(path).filename().string();
  if (!name.starts_with(base)) return false;
  long long index = 0, count = 0;
  if (std::sscanf(name.c_str() + base.size(), "-%5lld-of-%5lld.h5", &index, &count) != 2) return false;
  shard_index = index;
  num_shards = count;
  return index >= 0 && count > 0 && name == shard_path(base, index, count);  // no other spelling, nothing after it
}

std::vector<std::string> find_shards(const std::string& prefix) {
  if (prefix.ends_with(".h5")) return {prefix};
  const std::string make_it =
      cat("make it: bin/ringtrain-data names INPUT --out ", converter_prefix(prefix), "   (or: text INPUT ...)");
  fs::path folder = fs::path(prefix).parent_path();
  if (folder.empty()) folder = ".";
  std::map<std::int64_t, std::vector<bool>> found;  // by number of shards: which are there
  bool unfinished = false;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failed)) {
    std::int64_t index = 0, count = 0;
    std::string name = entry.path().filename().string();
    const bool temporary = name.ends_with(".tmp");
    if (temporary) name.resize(name.size() - 4);
    if (!parse_shard_name(prefix, name, index, count) || index >= count) continue;
    if (temporary) {
      unfinished = true;
    } else {
      std::vector<bool>& present = found[count];
      present.resize(static_cast<std::size_t>(count));
      present[static_cast<std::size_t>(index)] = true;
    }
  }
  if (failed) throw Error(cat(prefix, ": cannot list the folder '", folder.string(), "': ", failed.message()), make_it);
  if (found.empty()) {
    throw Error(cat("no data set at '", prefix, "': there is no ", shard_path(prefix, 0, 1),
                    unfinished ? ", only an unfinished conversion (*.tmp)" : " nor any other number of shards"),
                make_it);
  }
  if (found.size() > 1) {
    throw Error(cat(prefix, ": shards of two conversions lie side by side (", shard_path("", 0, found.begin()->first),
                    " and ", shard_path("", 0, found.rbegin()->first), ")"),
                "remove the older ones, or convert again with --force");
  }
  const auto& [count, present] = *found.begin();
  std::vector<std::string> paths;
  for (std::int64_t index = 0; index < count; ++index) {
    paths.push_back(shard_path(prefix, index, count));
    if (!present[static_cast<std::size_t>(index)]) {
      throw Error(cat(paths.back(), ": shard ", index, " of ", count, " is missing"), convert_again);
    }
  }
  return paths;
}

void check_shards_agree(const std::vector<ShardHeader>& headers) {
  const ShardHeader& first = headers.front();
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < headers.size(); ++i) {
    const ShardHeader& header = headers[i];
    if (header.num_shards != static_cast<std::int64_t>(headers.size())) {
      bad(header.path,
          cat("attribute 'num_shards' is ", header.num_shards, ", but ", headers.size(), " file(s) were found"),
          "give the prefix of all shards, not one file; rename no files");
    }
    if (header.shard_index != static_cast<std::int64_t>(i)) {
      bad(header.path, cat("attribute 'shard_index' is ", header.shard_index, ", but the file's name says ", i),
          "rename no files");
    }
    const auto same = [&](const auto& value, const auto& expected, const std::string& name) {
      if (value != expected) {
        bad(header.path, cat("attribute '", name, "' is ", value, ", but ", first.path, " says ", expected),
            "these files come from two conversions: convert the data again");
      }
    };
    same(header.dataset_uuid, first.dataset_uuid, "dataset_uuid");
    same(header.split, first.split, "split");
    same(header.total, first.total, "num_samples_total");
    same(header.running_text, first.running_text, "tokens' dimensions");
    same(header.context_length, first.context_length, "context_length");
    same(header.pad_id, first.pad_id, "pad_id");
    same(header.stop_id, first.stop_id, "stop_id");
    same(header.crc_block_bytes, first.crc_block_bytes, "block_bytes");
    if (header.vocabulary != first.vocabulary)
      bad(header.path, cat("attribute 'vocab' differs from that of ", first.path));
    sum += header.count;
  }
  if (sum != first.total) {
    bad(first.path, cat("attribute 'num_samples_total' is ", first.total, ", but the shards hold ", sum));
  }
  if (sum == 0) bad(first.path, "the data set is empty (0 samples)");
}

DatasetIndex read_dataset_index(const std::string& prefix) {
  std::vector<ShardHeader> headers;
  for (const std::string& path : find_shards(prefix)) headers.push_back(read_shard_header(path));
  check_shards_agree(headers);
  ShardHeader& first = headers.front();
  DatasetIndex index;
  index.prefix = prefix;
  index.kind = first.kind;
  index.split = first.split;
  index.dataset_name = first.dataset_name;
  index.dataset_uuid = first.dataset_uuid;
  index.text.running_text = first.running_text;
  index.text.context_length = first.context_length;
  index.text.crc_block_bytes = first.crc_block_bytes;
  index.text.vocabulary = first.vocabulary;
  index.text.pad_id = first.pad_id;
  index.text.stop_id = first.stop_id;
  index.text.lowercase = first.lowercase;
  for (ShardHeader& header : headers) {
    index.shards.push_back(
        {header.path, index.total, header.count, header.byte_offset, header.file_bytes, std::move(header.crc32c)});
    index.total += header.count;
  }
  return index;
}

}  // namespace ringtrain
