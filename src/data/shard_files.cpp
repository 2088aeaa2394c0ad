#include "data/shard_files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/hash.h"
#include "base/table.h"

namespace ringtrain {
namespace {

// Returns how many files may stay open; beyond that, the least recently used file is closed. The number is at most a
// quarter of the process's limit, because files read through HDF5 count twice. It is at most 512, because ranks x
// shards open files are a burden for a metadata server.
std::size_t open_file_limit() {
  rlimit limit{};
  std::size_t most = 512;
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    most = std::min(most, static_cast<std::size_t>(limit.rlim_cur) / 4);
  }
  return std::max<std::size_t>(most, 1);
}

constexpr std::size_t checked_bytes = 4096;  // number of checked bytes at the start of a file

std::string place(const std::string& path, const char* array, std::int64_t record) {
  return cat(path, ": ", record < 0 ? std::string() : cat("record ", record, ": "), "'", array, "'");
}

struct Descriptor {
  explicit Descriptor(const std::string& path) : value(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (value < 0) throw Error(cat(path, ": cannot open: ", std::strerror(errno)));
  }
  ~Descriptor() { ::close(value); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  const int value;
};

std::uint32_t checksum_of_start(int descriptor, const std::string& path) {
  std::array<std::uint8_t, checked_bytes> start;
  std::size_t have = 0;
  for (int retries_left = read_retries; have < start.size();) {
    const ssize_t got = ::pread(descriptor, start.data() + have, start.size() - have, static_cast<off_t>(have));
    const int reason = errno;
    if (got == 0) break;  // the file is shorter
    if (got > 0) {
      have += static_cast<std::size_t>(got);
    } else if (reason != EINTR) {
      if (retries_left-- == 0)
        throw Error(cat(path, ": cannot read at byte ", have, ": ", std::strerror(reason)),
                    cat("tried ", read_retries + 1, " times: check the disk or the file server, then resume"));
      pause_before_retry();
    }
  }
  return crc32c(std::span(start).first(have));
}

}  // namespace

void pause_before_retry() {
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

std::uint32_t start_checksum(const std::string& path) {
  return checksum_of_start(Descriptor(path).value, path);
}

struct ShardFiles::OpenFile {
  explicit OpenFile(const DatasetIndex::Shard& shard) : path(shard.path), descriptor(path) {
    struct stat status {};
    if (::fstat(descriptor.value, &status) != 0 || static_cast<std::uint64_t>(status.st_size) != shard.file_bytes)
      throw Error(cat(path, ": is ", status.st_size, " bytes long here, but was ", shard.file_bytes,
                      " when rank 0 read its header"),
                  "the file was changed during the run, or this host sees an incomplete copy");
    if (checksum_of_start(descriptor.value, path) != shard.start_crc32c)
      throw Error(
          cat(path, ": is not the file whose header rank 0 has read: its first 4096 bytes differ"),
          "the file was replaced during the run, or this host sees another copy: start again with the right one");
  }

  std::string path;
  Descriptor descriptor;
  std::optional<h5::File> hdf5;  // only if read_rows() is used; guarded by HDF5's lock
};

ShardFiles::ShardFiles(const std::vector<DatasetIndex::Shard>& shards, Pread pread)
    : shards_(shards), pread_(pread), most_open_(open_file_limit()), entries_(shards.size()) {}
ShardFiles::~ShardFiles() = default;

std::shared_ptr<ShardFiles::OpenFile> ShardFiles::open(std::size_t shard) {
  Entry& entry = entries_[shard];
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    entry.last_use = ++uses_;
    if (entry.file != nullptr) return entry.file;
  }
  // The file is opened without the lock, because a metadata server takes milliseconds and other threads read other
  // files.
  auto opened = std::make_shared<OpenFile>(shards_[shard]);
  bytes_read_ += static_cast<std::int64_t>(std::min<std::uint64_t>(checked_bytes, shards_[shard].file_bytes));
  std::shared_ptr<OpenFile> closed;  // is closed after the lock is released
  const std::lock_guard<std::mutex> lock(mutex_);
  if (entry.file != nullptr) return entry.file;  // another thread has opened the file
  if (open_count_ == most_open_) {
    Entry* oldest = nullptr;
    for (Entry& each : entries_) {
      if (each.file != nullptr && (oldest == nullptr || each.last_use < oldest->last_use)) oldest = &each;
    }
    closed = std::move(oldest->file);
    oldest->file = nullptr;
    --open_count_;
  }
  ++open_count_;
  entry.file = opened;
  return opened;
}

void ShardFiles::expect_count(std::size_t shard, const char* array, std::size_t found, std::size_t expected) const {
  if (found == expected) return;
  throw Error(cat(shards_[shard].path, ": data set '", array, "' has ", found, " values, expected ", expected),
              "the file was changed during the run");
}

void ShardFiles::reopen_later(std::size_t shard, const std::shared_ptr<OpenFile>& file) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (entries_[shard].file != file) return;
  entries_[shard].file = nullptr;
  --open_count_;
}

void ShardFiles::read(std::size_t shard, std::uint64_t offset, std::span<std::uint8_t> out, const char* array,
                      std::int64_t record) {
  std::shared_ptr<OpenFile> file = open(shard);
  int retries_left = read_retries;
  while (!out.empty()) {
    const ssize_t got = pread_(file->descriptor.value, out.data(), out.size(), static_cast<off_t>(offset));
    const int reason = errno;
    if (got > 0) {
      bytes_read_ += got;
      out = out.subspan(static_cast<std::size_t>(got));
      offset += static_cast<std::uint64_t>(got);
    } else if (got < 0 && reason == EINTR) {
      continue;
    } else if ((got == 0 || reason == EIO || reason == ESTALE) && retries_left-- > 0) {
      pause_before_retry();
      reopen_later(shard, file);
      file = open(shard);
    } else if (got == 0) {
      throw Error(cat(place(file->path, array, record), " ends at byte ", offset, " of the file, too early"),
                  "the file was cut while in use, or is an incomplete copy: copy or convert it again");
    } else {
      throw Error(cat(place(file->path, array, record), ": cannot read at byte ", offset, ": ", std::strerror(reason)),
                  cat(retries_left < 0 ? cat("tried ", read_retries + 1, " times: ") : "",
                      "check the disk or the file server, then resume"));
    }
  }
}

void ShardFiles::read_rows(std::size_t shard, const char* array, const h5::Shape& block, std::int64_t first,
                           std::span<std::uint8_t> out) {
  const std::shared_ptr<OpenFile> file = open(shard);
  const h5::Guard lock;
  if (!file->hdf5) file->hdf5 = h5::File::open(file->path);
  bytes_read_ += static_cast<std::int64_t>(out.size());
  const h5::Handle dataset = file->hdf5->open_dataset(array);
  const h5::RowSpaces spaces = h5::select_rows(dataset.get(), block, {first, first + block[0]});
  if (H5Dread(dataset.get(), H5T_NATIVE_UINT8, spaces.memory.get(), spaces.file.get(), H5P_DEFAULT, out.data()) < 0)
    file->hdf5->fail(cat("cannot read data set '", array, "'"));
}

// ---- The names of the files

namespace {

namespace fs = std::filesystem;

// Returns the converter's --out for a prefix: "data/pets" for "data/pets-train".
std::string converter_prefix(const std::string& prefix) {
  for (const std::string split : {"-train", "-validation"}) {
    if (prefix.ends_with(split)) return prefix.substr(0, prefix.size() - split.size());
  }
  return prefix;
}

// Throws Error if the prefix is the name of an HDF5 file of another program.
void expect_no_array_file(const std::string& prefix) {
  const h5::Guard guard;
  std::error_code failed;
  if (!fs::is_regular_file(prefix, failed) || H5Fis_hdf5(prefix.c_str()) <= 0) return;
  if (!h5::File::open(prefix).has_attribute("/", "schema")) refuse_array_file(prefix);
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

void refuse_array_file(const std::string& path) {
  throw Error(
      cat(path,
          ": is an HDF5 file without the attribute 'schema', so it is not a data set of ringtrain: convert it with "
          "bin/ringtrain-data import ",
          path, " --images KEY --labels KEY --out ", fs::path(path).replace_extension().string()),
      "each KEY is the name of a data set in the file");
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

}  // namespace ringtrain
