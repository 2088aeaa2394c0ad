#include "data/shard_files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/hash.h"

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

}  // namespace ringtrain
