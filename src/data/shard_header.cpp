#include "data/shard_header.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "base/error.h"
#include "data/hdf5.h"
#include "data/shard_files.h"

namespace ringtrain {
namespace {

constexpr std::int64_t largest_side = 65535;  // in pixels; the limit of JPEG

[[noreturn]] void bad_shard(const std::string& path, const std::string& what, const std::string& hint = convert_again) {
  throw Error(cat(path, ": ", what), hint);
}

// Throws Error if there is no such data set, or if it has another type: "u8".
void expect_type(const h5::File& file, const std::string& dataset, const std::string& expected) {
  if (!file.has(dataset)) bad_shard(file.path(), cat("data set '", dataset, "' is missing"));
  if (const std::string type = file.type(dataset); type != expected)
    bad_shard(file.path(), cat("data set '", dataset, "' has the wrong type: expected ", expected, ", found ", type));
}

// Returns the byte address of a data set whose bytes lie in this file exactly as memory holds values of `memory_type`,
// and no_byte_offset for other data sets: chunked, filtered, linked or external ones, and those of another byte order.
std::uint64_t byte_address(const h5::File& file, const std::string& dataset, hid_t memory_type) {
  h5::expect_stored(file, dataset);
  const h5::Guard guard;
  const h5::Handle handle = file.open_dataset(dataset);
  const h5::Handle creation(H5Dget_create_plist(handle.get()), H5Pclose), type(H5Dget_type(handle.get()), H5Tclose);
  H5O_info_t object{}, root{};
  const bool is_here =
      H5Oget_info(handle.get(), &object) >= 0 && H5Oget_info(file.id(), &root) >= 0 && object.fileno == root.fileno;
  const bool as_in_memory = H5Pget_layout(creation.get()) == H5D_CONTIGUOUS &&
                            H5Pget_external_count(creation.get()) == 0 && H5Tequal(type.get(), memory_type) > 0;
  if (!is_here || !as_in_memory) return no_byte_offset;
  const haddr_t offset = H5Dget_offset(handle.get());
  return offset == HADDR_UNDEF ? no_byte_offset : offset;
}

// Throws Error if the `bytes` bytes of a data set at this address are not inside the file.
void expect_inside(const ShardHeader& header, const std::string& dataset, std::uint64_t address, std::int64_t bytes) {
  const auto size = static_cast<std::uint64_t>(bytes);
  if (address != no_byte_offset && (address > header.file_bytes || size > header.file_bytes - address))
    bad_shard(header.path,
              cat("is truncated: '", dataset, "' ends at byte ", address + size, ", the file at ", header.file_bytes));
}

template <class Value>
void expect_same(const ShardHeader& header, const ShardHeader& first, const Value& value, const Value& expected,
                 const std::string& name) {
  if (value == expected) return;
  bad_shard(header.path, cat("attribute '", name, "' is ", value, ", but ", first.path, " says ", expected),
            "these files come from two conversions: convert the data again");
}

// ---- Text

void read_tokens_layout(const h5::File& file, ShardHeader& header) {
  expect_type(file, "tokens", "u8");
  const h5::Shape shape = file.shape("tokens");
  if (shape.size() != 1 && shape.size() != 2) {
    bad_shard(file.path(),
              cat("data set 'tokens' has ", shape.size(), " dimensions, expected 1 (running text) or 2 (names)"));
  }
  header.text.running_text = shape.size() == 1;
  if (shape[0] != header.count) {
    bad_shard(file.path(), cat("attribute 'num_samples' is ", header.count, ", but 'tokens' holds ", shape[0]));
  }
  if (!header.text.running_text) {
    header.text.context_length = file.read_integer("tokens", "context_length");
    if (header.text.context_length < 1 || shape[1] - 1 != header.text.context_length) {
      bad_shard(file.path(), cat("'tokens' has rows of ", shape[1], " symbols, but context_length is ",
                                 header.text.context_length, " (a row holds context_length + 1)"));
    }
    if (const std::string side = file.read_string("tokens", "pad_side"); side != "left") {
      bad_shard(file.path(), cat("attribute 'pad_side' is '", side, "', expected 'left'"));
    }
  }
  header.byte_offset = byte_address(file, "tokens", H5T_NATIVE_UINT8);
}

void read_vocabulary(const h5::File& file, ShardHeader& header) {
  header.text.vocabulary = file.read_strings("tokens", "vocab");
  for (std::string& symbol : header.text.vocabulary) {
    if (symbol.empty()) symbol.assign(1, '\0');  // strings of fixed length cannot hold the symbol NUL
  }
  const auto size = static_cast<std::int64_t>(header.text.vocabulary.size());
  if (size < 1 || size > largest_vocabulary) {
    bad_shard(file.path(), cat("attribute 'vocab' has ", size, " symbols, expected 1 to ", largest_vocabulary));
  }
  const auto optional_id = [&](const std::string& name) {
    const std::int64_t id = file.has_attribute("tokens", name) ? file.read_integer("tokens", name) : -1;
    if (id < -1 || id >= size)
      bad_shard(file.path(), cat("attribute '", name, "' is ", id, ", but there are ", size, " symbols"));
    return id;
  };
  header.text.pad_id = optional_id("pad_id");
  header.text.stop_id = optional_id("stop_id");
  if (!header.text.running_text && header.text.pad_id < 0)
    bad_shard(file.path(), "attribute 'pad_id' of 'tokens' is missing");
  header.text.lowercase = file.has_attribute("tokens", "lowercase") && file.read_integer("tokens", "lowercase") != 0;
}

void read_checksums(const h5::File& file, ShardHeader& header) {
  if (!file.has("crc32c")) return;
  if (file.has_attribute("crc32c", "block_bytes"))
    header.text.crc_block_bytes = file.read_integer("crc32c", "block_bytes");
  if (header.text.crc_block_bytes < 1 || header.text.crc_block_bytes > (std::int64_t{1} << 30)) {
    bad_shard(file.path(), cat("attribute 'block_bytes' of 'crc32c' is ", header.text.crc_block_bytes));
  }
  const std::int64_t blocks = (header.bytes() + header.text.crc_block_bytes - 1) / header.text.crc_block_bytes;
  expect_type(file, "crc32c", "u32");
  if (const h5::Shape shape = file.shape("crc32c"); shape != h5::Shape{blocks}) {
    bad_shard(file.path(), cat("data set 'crc32c' has ", shape.empty() ? 0 : shape[0], " values, expected ", blocks,
                               " (one per ", header.text.crc_block_bytes, " bytes of 'tokens')"));
  }
  header.crc32c = file.read<std::uint32_t>("crc32c");
}

void read_text_header(const h5::File& file, ShardHeader& header) {
  read_tokens_layout(file, header);
  read_vocabulary(file, header);
  read_checksums(file, header);
  expect_inside(header, "tokens", header.byte_offset, header.bytes());
}

void check_text_agrees(const ShardHeader& header, const ShardHeader& first) {
  expect_same(header, first, header.text.running_text, first.text.running_text, "tokens' dimensions");
  expect_same(header, first, header.text.context_length, first.text.context_length, "context_length");
  expect_same(header, first, header.text.pad_id, first.text.pad_id, "pad_id");
  expect_same(header, first, header.text.stop_id, first.text.stop_id, "stop_id");
  expect_same(header, first, header.text.crc_block_bytes, first.text.crc_block_bytes, "block_bytes");
  if (header.text.vocabulary != first.text.vocabulary)
    bad_shard(header.path, cat("attribute 'vocab' differs from that of ", first.path));
}

// ---- Images

std::string to_text(const h5::Shape& shape) {
  return cat("[", joined(shape), "]");
}

// Returns the byte address of a data set. Throws Error if its `bytes` bytes are not inside the file.
std::uint64_t place_of(const h5::File& file, const std::string& dataset, hid_t memory_type, std::int64_t bytes,
                       const ShardHeader& header) {
  const std::uint64_t begin = byte_address(file, dataset, memory_type);
  expect_inside(header, dataset, begin, bytes);
  return begin;
}

std::uint64_t place_of_array(const h5::File& file, const std::string& dataset, const std::string& type,
                             hid_t memory_type, const h5::Shape& expected, const ShardHeader& header) {
  expect_type(file, dataset, type);
  if (const h5::Shape shape = file.shape(dataset); shape != expected) {
    bad_shard(file.path(), cat("data set '", dataset, "' has the shape ", to_text(shape), ", expected ",
                               to_text(expected), " (num_samples is ", header.count, ")"));
  }
  auto bytes = static_cast<std::int64_t>(H5Tget_size(memory_type));
  for (const std::int64_t extent : expected) bytes *= extent;
  return place_of(file, dataset, memory_type, bytes, header);
}

std::vector<std::string> read_strings(const h5::File& file, const std::string& dataset) {
  expect_type(file, dataset, "string");
  if (const std::size_t dimensions = file.shape(dataset).size(); dimensions != 1)
    bad_shard(file.path(), cat("data set '", dataset, "' has ", dimensions, " dimensions, expected 1"));
  return file.read_strings(dataset);
}

// Reads values of the three colours. A grey data set has one value, which is used for all three.
std::vector<double> read_colours(const h5::File& file, const std::string& name, std::int64_t channels) {
  std::vector<double> values = file.read_reals("/", name);
  if (values.size() == 1 && channels == 1) values.resize(3, values[0]);
  if (values.size() != 3) {
    bad_shard(file.path(), cat("attribute '", name, "' has ", values.size(), " values, expected 3"));
  }
  const bool is_std = name == "std";
  for (const double value : values) {
    if (!(value >= 0 && value <= 1) || (is_std && value == 0)) {
      bad_shard(file.path(), cat("attribute '", name, "' holds ", value, ", expected values ",
                                 is_std ? "above 0 and up to 1" : "from 0 to 1", " (of pixels / 255)"));
    }
  }
  return values;
}

void read_encoding(const h5::File& file, ShardHeader& header) {
  expect_type(file, "images", "u8");
  const std::string encoding = file.read_string("images", "encoding");
  if (encoding != "jpeg" && encoding != "raw") {
    bad_shard(file.path(), cat("attribute 'encoding' of 'images' is '", encoding, "', expected 'jpeg' or 'raw'"));
  }
  header.image.raw = encoding == "raw";
  const h5::Shape shape = file.shape("images");
  const std::size_t expected = header.image.raw ? 4 : 1;
  if (shape.size() != expected) {
    bad_shard(file.path(), cat("data set 'images' has ", shape.size(), " dimensions, expected ", expected,
                               header.image.raw ? " ([N, H, W, C], encoding raw)" : " (bytes, encoding jpeg)"));
  }
  if (!header.image.raw) {
    header.arrays.image_bytes = shape[0];
    return;
  }
  if (const std::string layout = file.read_string("images", "layout"); layout != "NHWC") {
    bad_shard(file.path(), cat("attribute 'layout' of 'images' is '", layout, "', expected 'NHWC'"));
  }
  if (shape[0] != header.count) {
    bad_shard(file.path(), cat("attribute 'num_samples' is ", header.count, ", but 'images' holds ", shape[0]));
  }
  header.image.height = shape[1];
  header.image.width = shape[2];
  header.image.channels = shape[3];
  if (shape[1] < 1 || shape[1] > largest_side || shape[2] < 1 || shape[2] > largest_side ||
      (shape[3] != 1 && shape[3] != 3)) {
    bad_shard(file.path(), cat("'images' holds images of ", shape[1], " x ", shape[2], " x ", shape[3],
                               ", expected height x width x 1 or 3 channels"));
  }
  header.arrays.image_bytes = header.count * header.image.raw_record_bytes();
}

void read_arrays(const h5::File& file, ShardHeader& header) {
  ImageArrays& arrays = header.arrays;
  const std::int64_t n = header.count;
  header.byte_offset = place_of(file, "images", H5T_NATIVE_UINT8, arrays.image_bytes, header);
  arrays.labels = place_of_array(file, "labels", "i32", H5T_NATIVE_INT32, {n}, header);
  arrays.shapes = place_of_array(file, "shapes", "i32", H5T_NATIVE_INT32, {n, 3}, header);
  arrays.sample_ids = place_of_array(file, "sample_ids", "u64", H5T_NATIVE_UINT64, {n}, header);
  arrays.has_crc32c = file.has("crc32c");
  if (arrays.has_crc32c) arrays.crc32c = place_of_array(file, "crc32c", "u32", H5T_NATIVE_UINT32, {n}, header);
  if (header.image.raw) {
    arrays.largest_record = n > 0 ? header.image.raw_record_bytes() : 0;
    return;
  }
  arrays.offsets = place_of_array(file, "offsets", "u64", H5T_NATIVE_UINT64, {n + 1}, header);
  const std::vector<std::uint64_t> offsets = file.read<std::uint64_t>("offsets");
  check_image_offsets(file.path(), offsets, arrays.image_bytes);
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    arrays.largest_record = std::max(arrays.largest_record, static_cast<std::int64_t>(offsets[i + 1] - offsets[i]));
  }
}

void read_classes(const h5::File& file, ShardHeader& header) {
  header.image.class_names = read_strings(file, "class_names");
  header.image.class_ids = read_strings(file, "class_ids");
  const std::int64_t classes = file.read_integer("/", "num_classes");
  if (classes < 1 || classes > std::numeric_limits<std::int32_t>::max()) {
    bad_shard(file.path(), cat("attribute 'num_classes' is ", classes, ", expected at least 1"));
  }
  for (const auto& [name, values] :
       {std::pair{"class_names", &header.image.class_names}, std::pair{"class_ids", &header.image.class_ids}}) {
    if (static_cast<std::int64_t>(values->size()) == classes) continue;
    bad_shard(file.path(),
              cat("data set '", name, "' has ", values->size(), " values, but attribute 'num_classes' is ", classes));
  }
}

void read_image_header(const h5::File& file, ShardHeader& header) {
  if (header.count < 0) bad_shard(file.path(), cat("attribute 'num_samples' is ", header.count));
  read_encoding(file, header);
  read_arrays(file, header);
  read_classes(file, header);
  header.image.mean = read_colours(file, "mean", header.image.channels);
  header.image.std = read_colours(file, "std", header.image.channels);
}

void check_image_agrees(const ShardHeader& header, const ShardHeader& first) {
  const auto encoding = [](const ShardHeader& h) { return h.image.raw ? "raw" : "jpeg"; };
  expect_same(header, first, std::string(encoding(header)), std::string(encoding(first)), "encoding");
  expect_same(header, first, header.image.height, first.image.height, "images' height");
  expect_same(header, first, header.image.width, first.image.width, "images' width");
  expect_same(header, first, header.image.channels, first.image.channels, "images' channels");
  expect_same(header, first, header.image.num_classes(), first.image.num_classes(), "num_classes");
  const auto differs = [&](const std::string& what) {
    bad_shard(header.path, cat(what, " differs from that of ", first.path),
              "these files come from two conversions: convert the data again");
  };
  if (header.image.class_names != first.image.class_names) differs("data set 'class_names'");
  if (header.image.class_ids != first.image.class_ids) differs("data set 'class_ids'");
  if (header.image.mean != first.image.mean) differs("attribute 'mean'");
  if (header.image.std != first.image.std) differs("attribute 'std'");
}

// ---- All kinds

// Checks the attributes that tell whether this program can read the file.
void check_schema(const h5::File& file) {
  if (!file.has_attribute("/", "schema")) refuse_array_file(file.path());
  if (const std::string schema = file.read_string("/", "schema"); schema != "ringtrain") {
    bad_shard(file.path(), cat("attribute 'schema' is '", schema, "', expected 'ringtrain'"));
  }
  const std::vector<std::int64_t> version = file.read_integers("/", "schema_version");
  if (version.size() != 2 || version[0] != 1) {
    bad_shard(file.path(), cat("schema version is ", joined(version, "."), "; this program reads 1.x"),
              "use the program that wrote it, or convert the data again");
  }
  if (!file.has_attribute("/", "complete") || file.read_integer("/", "complete") != 1) {
    bad_shard(file.path(), "attribute 'complete' is missing or not 1: the conversion did not finish");
  }
}

ShardHeader read_checked(const std::string& path) {
  const h5::File file = h5::File::open(path);
  check_schema(file);
  ShardHeader header;
  header.path = path;
  header.kind = file.read_string("/", "kind");
  if (header.kind != "text" && header.kind != "image")
    bad_shard(path, cat("attribute 'kind' is '", header.kind, "', expected 'text' or 'image'"));
  header.split = file.read_string("/", "split");
  header.dataset_name = file.read_string("/", "dataset_name");
  header.dataset_uuid = file.read_string("/", "dataset_uuid");
  header.count = file.read_integer("/", "num_samples");
  header.total = file.read_integer("/", "num_samples_total");
  header.shard_index = file.read_integer("/", "shard_index");
  header.num_shards = file.read_integer("/", "num_shards");
  header.file_bytes = std::filesystem::file_size(path);
  header.start_crc32c = start_checksum(path);
  (header.is_image() ? read_image_header : read_text_header)(file, header);
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

void check_image_offsets(const std::string& path, std::span<const std::uint64_t> offsets, std::int64_t image_bytes) {
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    if (offsets[i] < offsets[i + 1] && offsets[i + 1] <= static_cast<std::uint64_t>(image_bytes)) continue;
    bad_shard(path, cat("record ", i, ": data set 'offsets' says bytes ", offsets[i], " to ", offsets[i + 1],
                        " of 'images', which has ", image_bytes, "; offsets must ascend"));
  }
}

void check_shards_agree(const std::vector<ShardHeader>& headers) {
  const ShardHeader& first = headers.front();
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < headers.size(); ++i) {
    const ShardHeader& header = headers[i];
    if (header.num_shards != static_cast<std::int64_t>(headers.size())) {
      bad_shard(header.path,
                cat("attribute 'num_shards' is ", header.num_shards, ", but ", headers.size(), " file(s) were found"),
                "give the prefix of all shards, not one file; rename no files");
    }
    if (header.shard_index != static_cast<std::int64_t>(i)) {
      bad_shard(header.path, cat("attribute 'shard_index' is ", header.shard_index, ", but the file's name says ", i),
                "rename no files");
    }
    expect_same(header, first, header.dataset_uuid, first.dataset_uuid, "dataset_uuid");
    expect_same(header, first, header.kind, first.kind, "kind");
    expect_same(header, first, header.split, first.split, "split");
    expect_same(header, first, header.total, first.total, "num_samples_total");
    const std::string other = header.split == "train" ? "validation" : "train";
    if (header.path.ends_with(shard_path("-" + other, header.shard_index, header.num_shards)))
      bad_shard(header.path, cat("attribute 'split' is '", header.split, "', but the file's name says ", other),
                "rename no files");
    (header.is_image() ? check_image_agrees : check_text_agrees)(header, first);
    sum += header.count;
  }
  if (sum != first.total) {
    bad_shard(first.path, cat("attribute 'num_samples_total' is ", first.total, ", but the shards hold ", sum));
  }
  if (sum == 0) bad_shard(first.path, "the data set is empty (0 samples)");
}

DatasetIndex make_dataset_index(const std::string& prefix, const std::vector<ShardHeader>& headers) {
  const ShardHeader& first = headers.front();
  DatasetIndex index;
  index.prefix = prefix;
  index.kind = first.kind;
  index.split = first.split;
  index.dataset_name = first.dataset_name;
  index.dataset_uuid = first.dataset_uuid;
  index.text = first.text;
  index.image = first.image;
  for (const ShardHeader& header : headers) {
    index.shards.push_back({header.path, index.total, header.count, header.byte_offset, header.file_bytes,
                            header.start_crc32c, header.crc32c, header.arrays});
    index.total += header.count;
  }
  return index;
}

}  // namespace ringtrain
