#include "data/shard_header.h"

#include <filesystem>
#include <map>

#include "base/table.h"
#include "data/hdf5.h"
#include "data/shard_files.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

// Returns the converter's --out for a prefix: "data/pets" for "data/pets-train".
std::string converter_prefix(const std::string& prefix) {
  for (const std::string split : {"-train", "-validation"}) {
    if (prefix.ends_with(split)) return prefix.substr(0, prefix.size() - split.size());
  }
  return prefix;
}

// Throws Error for an HDF5 file of another program. The message has the advice, too, because `verify` prints no hints.
[[noreturn]] void refuse_array_file(const std::string& path) {
  bad_shard(path,
            cat("is an HDF5 file without the attribute 'schema', so it is not a data set of ringtrain: convert it with "
                "bin/ringtrain-data import ",
                path, " --images KEY --labels KEY --out ", fs::path(path).replace_extension().string()),
            "each KEY is the name of a data set in the file");
}

// Throws Error if the prefix is the name of an HDF5 file of another program.
void expect_no_array_file(const std::string& prefix) {
  const h5::Guard guard;
  std::error_code failed;
  if (!fs::is_regular_file(prefix, failed) || H5Fis_hdf5(prefix.c_str()) <= 0) return;
  if (!h5::File::open(prefix).has_attribute("/", "schema")) refuse_array_file(prefix);
}

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
  header.file_bytes = fs::file_size(path);
  header.start_crc32c = start_checksum(path);
  (header.is_image() ? read_image_header : read_text_header)(file, header);
  return header;
}

// Returns whether a folder has any shard of a prefix.
bool has_shards(const std::string& prefix) {
  const fs::path folder = fs::path(prefix).parent_path();
  std::int64_t index = 0, count = 0;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.empty() ? "." : folder, failed))
    if (parse_shard_name(prefix, entry.path().string(), index, count)) return true;
  return false;
}

// Throws Error if a prefix without shards is a converter's --out, or the validation part of a data set that has none.
void expect_other_part(const std::string& prefix) {
  const std::string both = converter_prefix(prefix);
  if (both == prefix && has_shards(prefix + "-train"))
    throw Error(cat("no data set at '", prefix, "': there is ", prefix, "-train"),
                cat("set data.train=", prefix, "-train",
                    has_shards(prefix + "-validation") ? cat(" and data.validation=", prefix, "-validation") : ""));
  if (prefix == both + "-validation" && has_shards(both + "-train"))
    throw Error(cat("no data set at '", prefix, "': ", both, " has no validation part"),
                "convert it again with a larger --validation, or set data.validation=''");
}

}  // namespace

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

void expect_type(const h5::File& file, const std::string& dataset, const std::string& expected) {
  if (!file.has(dataset)) bad_shard(file.path(), cat("data set '", dataset, "' is missing"));
  if (const std::string type = file.type(dataset); type != expected)
    bad_shard(file.path(), cat("data set '", dataset, "' has the wrong type: expected ", expected, ", found ", type));
}

void expect_inside(const ShardHeader& header, const std::string& dataset, std::uint64_t address, std::int64_t bytes) {
  const auto size = static_cast<std::uint64_t>(bytes);
  if (address != no_byte_offset && (address > header.file_bytes || size > header.file_bytes - address))
    bad_shard(header.path,
              cat("is truncated: '", dataset, "' ends at byte ", address + size, ", the file at ", header.file_bytes));
}

ShardHeader read_shard_header(const std::string& path) {
  try {
    return read_checked(path);
  } catch (const Error& error) {
    throw Error(error.what(), error.hint().empty() ? convert_again : error.hint(), error.where());
  }
}

std::string shard_path(const std::string& prefix, std::int64_t shard_index, std::int64_t num_shards) {
  return prefix +
         printed("-%05lld-of-%05lld.h5", static_cast<long long>(shard_index), static_cast<long long>(num_shards));
}

bool parse_shard_name(const std::string& prefix, const std::string& path, std::int64_t& shard_index,
                      std::int64_t& num_shards) {
  const std::string base = fs::path(prefix).filename().string(), name = fs::path(path).filename().string();
  if (!name.starts_with(base)) return false;
  long long index = 0, count = 0;
  if (std::sscanf(name.c_str() + base.size(), "-%5lld-of-%5lld.h5", &index, &count) != 2) return false;
  shard_index = index;
  num_shards = count;
  return index >= 0 && count > 0 && name == shard_path(base, index, count);  // refuses other spellings and longer names
}

std::vector<std::string> find_shards(const std::string& prefix) {
  if (prefix.ends_with(".h5")) return {prefix};
  if (prefix.ends_with("/"))
    throw Error(cat("'", prefix, "' ends in a slash, expected the beginning of the files' names"),
                cat("for example ", prefix.substr(0, prefix.find_last_not_of('/') + 1)));
  const auto make_it = [&] {
    std::error_code unknown;
    const std::string here = fs::path(prefix).is_absolute() ? "" : fs::current_path(unknown).string();
    return cat("make it: bin/ringtrain-data KIND INPUT --out ", converter_prefix(prefix),
               ", where KIND is images, import, idx, names or text", here.empty() ? "" : "; relative paths begin in ",
               here);
  };
  fs::path folder = fs::path(prefix).parent_path();
  if (folder.empty()) folder = ".";
  std::map<std::int64_t, std::vector<bool>> found;  // which shards exist, by the number of shards
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
  if (failed)
    throw Error(cat(prefix, ": cannot list the folder '", folder.string(), "': ", failed.message()), make_it());
  if (found.empty()) {
    expect_no_array_file(prefix);
    expect_other_part(prefix);
    throw Error(cat("no data set at '", prefix, "': there is no ", shard_path(prefix, 0, 1),
                    unfinished ? ", only an unfinished conversion (*.tmp)" : " nor any other number of shards"),
                make_it());
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

DatasetIndex read_dataset_index(const std::string& prefix) {
  std::vector<ShardHeader> headers;
  for (const std::string& path : find_shards(prefix)) headers.push_back(read_shard_header(path));
  check_shards_agree(headers);
  return make_dataset_index(prefix, headers);
}

}  // namespace ringtrain
