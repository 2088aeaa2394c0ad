// A data set on disk (schema "ringtrain" 1.x) as one indexable thing, however many shards hold it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ringtrain {

// kind "text"
struct TextFormat {
  bool running_text = false;        // tokens u8 [T]; otherwise tokens u8 [N, context_length + 1]
  std::int64_t context_length = 0;  // names only
  std::int64_t crc_block_bytes = 65536;
  std::vector<std::string> vocabulary;     // UTF-8 symbol of each id
  std::int64_t pad_id = -1, stop_id = -1;  // -1: none
  bool lowercase = false;
};

// kind "image"
struct ImageFormat {
  bool raw = false;                               // records are pixels u8 [height, width, channels]; otherwise JPEG files
  std::int64_t height = 0, width = 0;             // raw only
  std::int64_t channels = 3;
  std::vector<std::string> class_names, class_ids;  // of label k: "tench", "n01440764"
  std::vector<double> mean, std;                  // per channel, of pixels / 255
};

// What the headers of all shards say; checked, small, the same on all ranks (rank 0 reads it, then broadcasts).
struct DatasetIndex {
  struct Shard {
    std::string path;
    std::int64_t first = 0;             // first sample (names) or character (running text) of the shard in the data set
    std::int64_t count = 0;             // samples or characters
    std::uint64_t byte_offset = 0;      // of the tokens in the file
    std::uint64_t file_bytes = 0;       // the file's expected length
    std::vector<std::uint32_t> crc32c;  // one per block of `crc_block_bytes` of the tokens
  };
  std::string prefix;
  std::string kind;   // "text" | "image"
  std::string split;  // "train" | "validation"
  std::string dataset_name;
  std::string dataset_uuid;
  std::int64_t total = 0;  // samples or characters in all shards
  TextFormat text;
  ImageFormat image;
  std::vector<Shard> shards;

  bool is_image() const { return kind == "image"; }

  std::string serialize() const;
  static DatasetIndex deserialize(const std::string& bytes);
};

// Finds <prefix>-00000-of-NNNNN.h5 (or one file, when prefix ends in .h5), checks schema, version, `complete`, types,
// layout, equal uuid, shard totals and each file's length. Throws Error naming file and attribute, and what to do.
DatasetIndex read_dataset_index(const std::string& prefix);

// Random access to tokens from any thread. Files are opened lazily; bytes come by pread in blocks, each checked against
// its CRC once and kept, so memory grows to the data set's own size.
class TextDataset {
 public:
  explicit TextDataset(DatasetIndex index);
  ~TextDataset();
  const DatasetIndex& index() const;
  // names: row `sample`, [context_length + 1] bytes into `out`.
  void read_row(std::int64_t sample, std::span<std::uint8_t> out) const;
  // running text: characters [first, first + out.size()), across shards.
  void read_text(std::int64_t first, std::span<std::uint8_t> out) const;
  std::int64_t memory_bytes() const;  // when every block has been touched

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The distinct names that the data set was made of, decoded to UTF-8 and sorted: to tell invented names from known
// ones.
std::vector<std::string> read_known_names(const DatasetIndex& index);

}  // namespace ringtrain
