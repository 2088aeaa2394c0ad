// Random access to the images of a data set of kind "image".
#pragma once

#include <array>

#include "data/dataset.h"
#include "data/shard_files.h"

namespace ringtrain {

// Reads the bytes of one record: out.size() bytes from `offset` for a JPEG file, or the pixels of one image. Training
// and the verifier both read with this function.
void read_image_record(ShardFiles& files, const DatasetIndex& index, std::size_t shard, std::size_t record,
                       std::uint64_t offset, std::span<std::uint8_t> out);

// A shard is opened when it is first needed. Its labels, offsets, ids and checksums are then read and stay in memory
// (at most 36 bytes per sample). The labels, the offsets and the shapes are checked. Any number of threads may read
// records at the same time, by pread. Records without a byte address are read through HDF5, one at a time.
class ImageDataset : public Dataset {
 public:
  struct Record {
    std::int32_t label = 0;  // in [0, classes)
    std::uint64_t sample_id = 0;
    std::int64_t bytes = 0;
    std::array<std::int32_t, 3> shape = {};  // of a JPEG file: height, width, channels, as the data set says
  };

  explicit ImageDataset(DatasetIndex index, std::shared_ptr<SharedMemory> memory = nullptr,
                        ShardFiles::Pread pread = ::pread);
  ~ImageDataset() override;
  std::int64_t bytes_read() const override;
  static std::int64_t bytes_of(const DatasetIndex& index);  // see dataset_bytes()

  Record record(std::int64_t sample) const;
  // Reads the bytes of a record into `out`, which is resized: a JPEG file, or pixels u8 [height, width, channels]. A
  // failed read or a wrong checksum is tried again. After that it throws Error with file and record.
  void read(std::int64_t sample, std::vector<std::uint8_t>& out) const;
  std::string name_of(std::int64_t sample) const;  // "<file>: record <number in the file>", for messages

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringtrain
