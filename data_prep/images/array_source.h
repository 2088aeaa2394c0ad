// Reads images from a data set of an HDF5 file of any origin. Each row is one image.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "data/hdf5.h"
#include "data_prep/images/source.h"

namespace ringtrain {

class ArraySource : public ListedImageSource {
 public:
  // Throws Error if import_arrays() does not take such a data set.
  ArraySource(const std::string& path, const std::string& dataset, const std::string& layout);

  std::int64_t rows() const { return shape_[0]; }
  bool encoded() const { return encoded_; }
  std::int64_t channels() const { return channels_; }
  std::string describe() const;  // "pixels 32 x 32 x 3, stored NCHW"

  FoundImage read(const ImageItem& item) const override;  // item.offset is the row

 private:
  struct Block {
    std::int64_t first = 0;
    std::vector<std::uint8_t> bytes;
  };
  std::vector<std::uint8_t> read_encoded(std::int64_t row) const;
  std::shared_ptr<const Block> block_of(std::int64_t row) const;

  h5::File file_;
  std::string name_;
  h5::Handle dataset_;
  h5::Shape shape_;
  bool encoded_ = false, channels_first_ = false;
  std::int64_t height_ = 0, width_ = 0, channels_ = 0;
  std::int64_t block_rows_ = 1;  // rows of a chunk; unpacking a chunk once per row would be slow
  mutable std::mutex mutex_;
  mutable std::deque<std::shared_ptr<const Block>> blocks_;  // the blocks that were read last, newest first
};

// Returns the labels. Throws Error if they are not integers of shape (N) or (N, 1).
std::vector<std::int64_t> read_array_labels(const std::string& path, const std::string& dataset);

}  // namespace ringtrain
