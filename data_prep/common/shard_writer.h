// Writes shards of kind "text" (format: data_prep/README.md). The shards have checksums. They have temporary names
// until all of them are finished.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/hdf5.h"

namespace ringtrain {

// A hash of 128 bits of a data set's content and options. Equal input gives an equal dataset_uuid and equal files.
class ContentHash {
 public:
  void add(std::string_view bytes);
  void add(std::uint64_t word);
  std::string uuid() const;

 private:
  std::uint64_t a_ = 0, b_ = 0;
};

// The options of all conversions.
struct FileOptions {
  std::string out;                   // prefix; "-train" and "-validation" are appended
  std::int64_t shards = 2;           // per split
  std::uint64_t seed = 1;            // decides the order on disk and what is held out
  std::optional<double> validation;  // share held out
  std::string license = "unknown";
  bool force = false;  // overwrites files
};

// The attributes that all shards of one split have.
struct SplitDescription {
  std::string prefix;  // includes the split: "data/pets-train"
  std::string split, dataset_name, dataset_uuid, source, license;
  std::uint64_t seed = 0;
  std::int64_t total = 0;  // samples (names) or characters (running text)
  std::int64_t num_shards = 1;
  std::int64_t context_length = 0;  // 0: running text
  std::vector<std::string> vocabulary;
  std::int64_t pad_id = -1, stop_id = -1;
  bool lowercase = false;
};

// Returns the description of a split of `total` samples, or characters. `source` is the path of the input. The caller
// adds what it knows of the content.
SplitDescription describe_split(const FileOptions& options, const std::string& split, std::int64_t total,
                                const std::string& source);

// The samples [first, last) of one shard.
struct ShardRange {
  std::int64_t first, last;
};
ShardRange shard_range(std::int64_t total, std::int64_t shards, std::int64_t shard);

// Folders that a conversion made. The destructor removes those that are empty.
class MadeFolders {
 public:
  MadeFolders() = default;
  ~MadeFolders();
  MadeFolders(const MadeFolders&) = delete;
  MadeFolders& operator=(const MadeFolders&) = delete;
  void make(const std::string& path);  // with the folders above it; throws Error

 private:
  std::vector<std::string> made_;  // a folder comes after the folders above it
};

// The files of a conversion. Until commit() they have temporary names. Without commit() the destructor removes the
// files that were given to add(), and so does a signal that stops the program. A conversion of images gives its shards
// to add() only just before commit(). After an error, its finished shards therefore stay for --resume.
class OutputFiles {
 public:
  // Removes the files that an interrupted conversion left. With `resume` all files stay, so that the caller can use
  // them. Throws Error if data sets exist at these prefixes and neither `force` nor `resume` is true, if a prefix names
  // a folder, or while another conversion writes there.
  OutputFiles(std::vector<std::string> prefixes, bool force, bool resume = false);
  ~OutputFiles();
  OutputFiles(const OutputFiles&) = delete;
  OutputFiles& operator=(const OutputFiles&) = delete;

  std::string add(const std::string& final_path);  // returns the temporary path to write to
  // Syncs and renames all files. Then removes shards of an earlier conversion that were not replaced.
  void commit();
  // Throws Error if commit() would replace or remove `input`, which the conversion reads.
  void expect_other_than(const std::string& input) const;
  std::vector<std::string> matching(bool temporary) const;  // the files at the prefixes: temporary or final ones

 private:
  void unlock(bool held);
  MadeFolders folders_;  // is destroyed after the locks in the folders are removed
  std::vector<std::string> prefixes_, finals_;
  std::vector<int> locks_;  // lock files <prefix>.lock, which keep a second conversion out
  bool committed_ = false;
};

// Writes the attributes of '/' that all kinds have, except `complete`.
void write_root_attributes(h5::File& file, const SplitDescription& split, const std::string& kind, std::int64_t shard,
                           std::int64_t count, std::int64_t num_classes);

// Writes one file. Rows are appended in order. finish() writes the checksums and, last of all, `complete`.
class ShardWriter {
 public:
  ShardWriter(const SplitDescription& split, std::int64_t shard, OutputFiles& files);
  // For running text, the last two spans are empty.
  void append(std::span<const std::uint8_t> tokens, std::span<const std::uint64_t> sample_ids,
              std::span<const std::uint32_t> name_index);
  void write_names(std::span<const std::uint8_t> bytes, std::span<const std::uint64_t> offsets);
  void finish();
  ShardRange range() const { return range_; }

 private:
  void append_to(const std::string& name, hid_t type, std::int64_t first, std::int64_t count, const void* values);

  const SplitDescription& split_;
  ShardRange range_;
  std::int64_t row_bytes_, written_ = 0, block_filled_ = 0;
  std::uint32_t crc_ = 0;
  std::vector<std::uint32_t> checksums_;
  h5::File file_;
};

}  // namespace ringtrain
