// Data sets. Begin reading here. A data set on disk (schema "ringtrain" 1.x) consists of shards. DatasetIndex holds
// their headers. Dataset reads samples or text by position, in any shard. loader.h prepares micro-batches in the
// background: row_plan.h says which samples they have, and image_transform.h turns records into pixels.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ringtrain {

class SharedMemory;

// The address of an array that does not lie in the file as it is. Programs such as h5py may store arrays in chunks,
// filtered, or in another file. Such arrays are read through HDF5.
inline constexpr std::uint64_t no_byte_offset = ~std::uint64_t{0};

inline constexpr std::int64_t largest_vocabulary = 254;  // symbols; the limit of the file format, whose ids are u8

// The format of a data set of kind "text".
struct TextFormat {
  bool running_text = false;        // tokens u8 [T]; otherwise tokens u8 [N, context_length + 1]
  std::int64_t context_length = 0;  // names only
  std::int64_t crc_block_bytes = 65536;
  std::vector<std::string> vocabulary;     // UTF-8 symbol of each id
  std::int64_t pad_id = -1, stop_id = -1;  // -1: none
  bool lowercase = false;
};

// The format of a data set of kind "image".
struct ImageFormat {
  bool raw = false;                    // records are pixels u8 [height, width, channels]; otherwise JPEG files
  std::int64_t height = 0, width = 0;  // raw only
  std::int64_t channels = 3;
  std::vector<std::string> class_names, class_ids;  // by label: such as "tench", "n01440764"
  std::vector<double> mean, std;                    // 3 values each, for pixels / 255

  std::int64_t num_classes() const { return static_cast<std::int64_t>(class_names.size()); }
  std::int64_t raw_record_bytes() const { return height * width * channels; }
};

// The places of a shard's other arrays in its file (or no_byte_offset), and the size of its records.
struct ImageArrays {
  std::uint64_t offsets = no_byte_offset, labels = no_byte_offset, shapes = no_byte_offset;
  std::uint64_t sample_ids = no_byte_offset, crc32c = no_byte_offset;
  bool has_crc32c = false;
  std::int64_t image_bytes = 0;     // size of all records together
  std::int64_t largest_record = 0;  // bytes
};

// The checked headers of all shards. Rank 0 reads them and broadcasts this small object to all ranks.
struct DatasetIndex {
  struct Shard {
    std::string path;
    std::int64_t first = 0;             // first sample or (running text) character of the shard in the data set
    std::int64_t count = 0;             // samples or characters
    std::uint64_t byte_offset = 0;      // position of the tokens or the images in the file
    std::uint64_t file_bytes = 0;       // the file's expected length
    std::uint32_t start_crc32c = 0;     // start_checksum() of the file
    std::vector<std::uint32_t> crc32c;  // text: one per block of `crc_block_bytes` of the tokens
    ImageArrays arrays;                 // images
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
  std::string_view content() const { return is_image() ? "images" : text.running_text ? "running text" : "names"; }
  std::size_t shard_of(std::int64_t position) const;  // position of a sample or character in [0, total)
  std::int64_t largest_record() const;                // images: bytes
  std::int64_t image_bytes() const;                   // images: bytes of all records

  std::string serialize() const;
  static DatasetIndex deserialize(const std::string& bytes);
};

// Finds <prefix>-00000-of-NNNNN.h5, or one file if the prefix ends in .h5. Checks schema, version, `complete`, types,
// layout, equal uuid, shard totals and each file's length. Throws Error with file and attribute, and what to do.
DatasetIndex read_dataset_index(const std::string& prefix);

// The samples or the text of an index (text_dataset.h, image_dataset.h). All functions may be called from any thread.
class Dataset {
 public:
  virtual ~Dataset() = default;
  const DatasetIndex& index() const { return index_; }
  // Returns the bytes that this process has read from the files so far, including checks of their first bytes.
  virtual std::int64_t bytes_read() const = 0;

 protected:
  explicit Dataset(DatasetIndex index) : index_(std::move(index)) {}
  const DatasetIndex index_;
};

// Returns the bytes that a data set keeps in memory after everything was read: the text, or the tables of the images.
std::int64_t dataset_bytes(const DatasetIndex& index);

// `memory` has dataset_bytes(index) bytes, which are zeros at first. The processes of a machine share it as their only
// copy. The first process that needs a part reads and checks it. Others wait only for that part. Null: this process has
// a copy of its own.
std::shared_ptr<const Dataset> make_dataset(DatasetIndex index, std::shared_ptr<SharedMemory> memory = nullptr);

}  // namespace ringtrain
