// Reads images and labels from the data sets of an HDF5 file of any origin.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "data/hdf5.h"
#include "data_prep/images/array_shape.h"
#include "data_prep/images/record.h"

namespace ringtrain {

// Opens the HDF5 file of other people's arrays. If an array is missing, the error says which ones there are.
enum class ArrayUse { images, labels };

// Throws Error if another process has the file open for writing, so that only a part of it may be there. HDF5 locks
// such files, unless HDF5_USE_FILE_LOCKING is FALSE or the file system has no locks; nothing is found out then. Must be
// called before the first h5::Guard, which sets that variable.
void expect_no_writer(const std::string& path);

// Opens the file. Throws Error if it has no such data set, or if MATLAB has stored something else there than an array:
// nothing, a cell array, a sparse matrix or an object. `dataset` may be "", which is an error, too.
h5::File open_with_dataset(const std::string& path, const std::string& dataset, ArrayUse use);

// Reads the labels of imported arrays.

// Whole numbers of any type: integers, floating-point numbers as MATLAB stores them, bool or enum. The shape is (N),
// (N, 1) or (1, N).
class ArrayLabels {
 public:
  // Throws Error for other types and shapes.
  ArrayLabels(const std::string& path, const std::string& dataset);

  struct Name {
    std::int64_t label = 0;
    std::string name;
  };

  std::int64_t count() const { return count_; }
  // Returns the names that the labels' enumeration type gives to their values, in the order of the values. Empty: the
  // labels have another type.
  std::vector<Name> names() const;
  // Reads the labels of rows [first, end). Throws Error if one is not in the file, is no whole number, or is 2^63 or
  // more.
  std::vector<std::int64_t> read(std::int64_t first, std::int64_t end) const;

 private:
  h5::File file_;
  std::string name_, type_;
  h5::Shape shape_;
  int axis_ = 0;  // the axis that counts the labels
  std::int64_t count_ = 0;
};

// Reads images from a data set. Each row is one image.
class ArraySource : public ListedImageSource {
 public:
  // `layout` is any order of the letters NHWC (NHW for grey images), or "" to find it from the labels of the axes, or
  // from the shape, the number of labels and the program that wrote the file. Throws Error if import_arrays() does not
  // take such a data set.
  ArraySource(const std::string& path, const std::string& dataset, const std::string& layout, std::int64_t labels);

  std::int64_t rows() const { return shape_[axis_]; }
  bool encoded() const { return encoded_; }
  std::int64_t channels() const { return channels_; }
  std::string describe() const;  // "pixels 32 x 32 x 3, stored NCHW"
  // Returns what to look at if the order of the axes was guessed and another one is usual, too. "": nothing.
  std::string doubt() const;

  // Throws Error if a pixel of rows [first, end) is not in the file. Returns the number of rows of which parts were
  // never written and are the file's own fill value.
  std::int64_t expect_rows(std::int64_t first, std::int64_t end) const;

  FoundImage read(const ImageItem& item) const override;  // item.offset is the row

 private:
  struct Block {
    std::int64_t first = 0, count = 0;
    std::vector<std::uint8_t> bytes;
  };
  void set_block_rows();
  [[noreturn]] void fail(const std::string& rows) const;
  std::vector<std::uint8_t> read_encoded(std::int64_t row) const;
  std::shared_ptr<const Block> block_of(std::int64_t row) const;

  h5::File file_;
  std::string name_;
  h5::Handle dataset_;
  h5::Shape shape_;
  ArrayOrigin origin_;
  bool encoded_ = false, layout_was_asked_ = false, layout_is_labelled_ = false;
  std::string layout_ = "N";  // a letter for each axis
  std::size_t axis_ = 0;      // the axis that counts the images
  std::int64_t height_ = 0, width_ = 0, channels_ = 0;
  std::int64_t block_rows_ = 1;  // rows that are read at once; unpacking a chunk once per row would be slow
  mutable std::mutex mutex_;
  mutable std::deque<std::shared_ptr<const Block>> blocks_;  // the blocks that were read last, newest first
};

}  // namespace ringtrain
