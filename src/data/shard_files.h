// The files of a data set: their names, and reading them from any thread. A file is opened when it is first needed.
// Failed reads are tried again, because network file systems may fail for a moment.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/rounding.h"
#include "data/dataset.h"
#include "data/hdf5.h"

namespace ringtrain {

// The number of times that a failed read is tried again, and the pause before each new try.
inline constexpr int read_retries = 3;
void pause_before_retry();

// Returns the CRC-32C of the file's first 4 KiB. They contain the attributes, so that the checksum tells one shard from
// another. Throws Error.
std::uint32_t start_checksum(const std::string& path);

class ShardFiles {
 public:
  using Pread = ssize_t (*)(int, void*, std::size_t, off_t);

  // `shards` must outlive this object.
  explicit ShardFiles(const std::vector<DatasetIndex::Shard>& shards, Pread pread = ::pread);
  ~ShardFiles();

  // Opens the file. Throws Error if it is missing, or if it is not the file from which the index was made.
  void check(std::size_t shard) { open(shard); }

  // Reads bytes [offset, offset + out.size()) of the file. After a failure (EIO, ESTALE, end of file) it opens the file
  // again and retries, up to read_retries times. Then it throws Error with the file, `array` and, if given, the record.
  void read(std::size_t shard, std::uint64_t offset, std::span<std::uint8_t> out, const char* array,
            std::int64_t record = -1);

  // Reads rows of a u8 array without a byte address through HDF5, under its lock: a block of this shape from row
  // `first`.
  void read_rows(std::size_t shard, const char* array, const h5::Shape& block, std::int64_t first,
                 std::span<std::uint8_t> out);

  // Reads a whole array, at its byte address or through HDF5. Throws Error, also if it has another number of values.
  template <class T>
  void read_array(std::size_t shard, const char* array, std::uint64_t address, std::span<T> out) {
    if (address != no_byte_offset) {
      read(shard, address, {reinterpret_cast<std::uint8_t*>(out.data()), out.size_bytes()}, array);
      return;
    }
    check(shard);
    const std::vector<T> values = h5::File::open(shards_[shard].path).read<T>(array);
    expect_count(shard, array, values.size(), out.size());
    std::ranges::copy(values, out.begin());
    bytes_read_ += static_cast<std::int64_t>(out.size_bytes());
  }

  std::int64_t bytes_read() const { return bytes_read_; }  // bytes read by all functions of this class

 private:
  struct OpenFile;
  struct Entry {
    std::shared_ptr<OpenFile> file;  // null: closed
    std::uint64_t last_use = 0;
  };

  void expect_count(std::size_t shard, const char* array, std::size_t found, std::size_t expected) const;
  std::shared_ptr<OpenFile> open(std::size_t shard);
  void reopen_later(std::size_t shard, const std::shared_ptr<OpenFile>& file);

  const std::vector<DatasetIndex::Shard>& shards_;
  Pread pread_;
  std::size_t most_open_;
  std::mutex mutex_;
  std::vector<Entry> entries_;
  std::size_t open_count_ = 0;
  std::uint64_t uses_ = 0;
  std::atomic<std::int64_t> bytes_read_ = 0;
};

// Divides a block of memory into consecutive arrays.
class MemoryPlaces {
 public:
  explicit MemoryPlaces(std::uint8_t* memory) : memory_(memory) {}  // null: only bytes() counts; arrays are empty

  // The caller keeps the alignment of T: larger types come first, and pad() comes after them.
  template <class T>
  std::span<T> take(std::int64_t count) {
    const auto values = static_cast<std::size_t>(count);
    const std::size_t begin = used_;
    used_ += values * sizeof(T);
    return memory_ == nullptr ? std::span<T>() : std::span<T>(reinterpret_cast<T*>(memory_ + begin), values);
  }
  void pad(std::size_t alignment) { used_ = round_up(used_, alignment); }
  std::size_t bytes() const { return used_; }

 private:
  std::uint8_t* memory_;
  std::size_t used_ = 0;
};

// ---- The names of the files

// Returns the shards of <prefix> in order: <prefix>-00000-of-NNNNN.h5 ..., or the one file if the prefix ends in .h5.
// Throws Error if there is none, if one is missing, or if there are shards of two conversions.
std::vector<std::string> find_shards(const std::string& prefix);

// Returns "names-train-00002-of-00004.h5" for ("names-train", 2, 4).
std::string shard_path(const std::string& prefix, std::int64_t shard_index, std::int64_t num_shards);

// Reads the index and the number of shards from the name of a shard of `prefix`. Returns false for other names.
bool parse_shard_name(const std::string& prefix, const std::string& path, std::int64_t& shard_index,
                      std::int64_t& num_shards);

// Throws Error for an HDF5 file of another program. The message has the advice, too, because `verify` prints no hints.
[[noreturn]] void refuse_array_file(const std::string& path);

// The hint of errors about a file that is incomplete or damaged.
inline constexpr const char* convert_again = "convert the data again with bin/ringtrain-data, or copy the file again";

}  // namespace ringtrain
