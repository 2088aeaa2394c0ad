// Reads images and labels from the data sets of an HDF5 file of any origin. array_shape.cpp finds out what an array is,
// array_advice.cpp says what to do with one that is not read, and array_source.cpp reads it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "data/hdf5.h"
#include "data_prep/images/record.h"

namespace ringtrain {

// The program that wrote an array. Many programs store arrays with reversed axes.
struct ArrayOrigin {
  std::string program;       // "MATLAB", "Octave", "R" or "Julia", whose arrays have reversed axes; "": unknown
  std::string matlab_class;  // "uint8", "logical", "char", "cell", ...; "": the array has no mark of MATLAB

  bool is_reversed() const { return !program.empty(); }
  bool is_matlab() const { return program == "MATLAB"; }
};

// Looks at the attributes of the data set and of the groups above it, and at the first bytes of its file. R's rhdf5
// marks whole numbers only. MATLAB's h5create and Julia's HDF5.jl leave no mark. Throws Error if the data set cannot be
// opened.
ArrayOrigin origin_of(const h5::File& file, const std::string& dataset);

// Finds out which axis of an array of images is which.

inline constexpr const char* expected_images =
    "expected u8 pixels (N, H, W, C), (N, C, H, W) or (N, H, W), or (N) encoded images of variable length";

std::string text_of(const h5::Shape& shape);  // "(640, 8, 8, 3)"

// An order of the axes that somebody has given.
struct AskedLayout {
  std::string letters;      // any order of NHWC, or of NHW for grey pictures; "": nobody has
  bool is_in_file = false;  // the file has labels of its axes; otherwise the user typed --layout

  std::string asker() const { return is_in_file ? "the labels of its axes," : "--layout"; }
};

// Reads the labels that a file gives to the axes of a data set (h5py's dims[0].label): N or B, H, W and C, or such
// words as batch, height, width and channel. Throws Error if there are labels that name no order of the axes.
AskedLayout layout_in_file(const h5::File& file, const std::string& dataset);

// Returns a letter for each axis of an array of pixels, which has three or four: "NHWC", "NCWH", "NHW". `labels` is the
// number of labels. `found` begins the messages. Throws Error if no layout fits or several do. The number of images may
// still differ from that of the labels.
std::string layout_of(const h5::Shape& shape, const ArrayOrigin& origin, std::int64_t labels, const AskedLayout& asked,
                      const std::string& found);

// Says what to do with arrays that are no pixels or labels yet: statements of numpy, h5py and MATLAB.

// Returns an advice for MATLAB's users: a statement that makes another array, such as "Y = full(Y)".
std::string in_matlab(const std::string& statement);

// Returns a data set's name as MATLAB writes it: "imdb.images.data" for imdb/images/data.
std::string variable_name(const std::string& dataset);

// Returns what turns values from `least` to `most` into pixels from 0 to 255. `type` is the name that File::type()
// gives the values' type, `x` the name of their array. Values of more than 8 bits are divided by the largest value of
// their number of bits, which is the same for all splits.
std::string advice_on_range(const std::string& type, double least, double most, bool for_matlab, const std::string& x);

// A value of a row, counted from 0.
struct RowValue {
  std::int64_t row = 0;
  double value = 0;
};
// Returns "row 3 has NaN" or "row 3 has an infinite value".
std::string text_of(const RowValue& found);
std::string advice_on_not_finite(bool for_matlab);

// Throws Error for pixels of another type than u8. It states the range of the first images, counted along `axis`, and
// says how to turn them into u8 pixels, or into encoded images of variable length.
[[noreturn]] void refuse_pixels(const h5::File& file, const std::string& dataset, int axis, const ArrayOrigin& origin);

// Throws Error for u8 pixels, or variable-length values, of a shape that is not read: rows of pixels or of padded JPEG
// files, batches, and (N, 1) values. `found` is the message up to the shape.
[[noreturn]] void refuse_shape(const h5::File& file, const std::string& dataset, const std::string& found);

// Returns what to do with a group that has one data set for each image, or "" for any other group.
std::string advice_on_group_of_images(const h5::File& file, const std::string& group);

// Returns how text labels become numbers. Texts that are numbers are converted, and names are numbered by one list.
std::string advice_on_text_labels(const h5::File& file, const std::string& dataset);
// The same for MATLAB. `names` is an expression for a cell array of the labels' names.
std::string matlab_advice_on_names(const std::string& variable, const std::string& names);
// Returns how a cell array of MATLAB becomes numbers.
std::string matlab_advice_on_cell(const h5::File& file, const std::string& dataset);

// Returns what to do with labels that have two long axes. `is_matlab` chooses the language.
std::string advice_on_label_rows(const h5::File& file, const std::string& dataset, bool is_matlab);

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
