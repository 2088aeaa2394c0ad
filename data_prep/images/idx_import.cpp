// Imports IDX files, the format of MNIST: import_idx() of import.h.
#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <ostream>

#include "base/error.h"
#include "data_prep/common/input_file.h"
#include "data_prep/images/arrays.h"
#include "data_prep/images/import.h"

namespace ringtrain {
namespace {

constexpr std::size_t magic_bytes = 4, size_bytes = 4;
constexpr const char* expected_form =
    "an IDX file begins with two zero bytes, the type of its values and the number of its axes";

// An array as an IDX file has it: values in row-major order, the highest byte first.
struct IdxArray {
  std::string path;
  std::uint8_t type = 0;  // 0x08: u8, 0x09: i8, 0x0b: i16, 0x0c: i32, 0x0d: f32, 0x0e: f64
  h5::Shape shape;
  std::vector<std::uint8_t> bytes;  // the values
};

int bytes_of_value(std::uint8_t type) {
  switch (type) {
    case 0x08:
    case 0x09:
      return 1;
    case 0x0b:
      return 2;
    case 0x0c:
    case 0x0d:
      return 4;
    case 0x0e:
      return 8;
    default:
      return 0;
  }
}

std::int64_t big_endian(const std::uint8_t* bytes, std::size_t count, bool is_signed) {
  std::int64_t value = is_signed && (bytes[0] & 0x80) != 0 ? -1 : 0;
  for (std::size_t i = 0; i < count; ++i) value = value * 256 + bytes[i];
  return value;
}

IdxArray read_idx(const std::string& path) {
  std::error_code failed;
  if (std::filesystem::is_directory(path, failed)) throw Error(cat(path, ": is a directory, not an IDX file"));
  GzipFile file(path);
  IdxArray array;
  array.path = path;
  const std::vector<std::uint8_t> magic = file.read(magic_bytes);
  if (magic.size() < magic_bytes || magic[0] != 0 || magic[1] != 0 || bytes_of_value(magic[2]) == 0 || magic[3] == 0)
    throw Error(cat(path, ": is not an IDX file"), expected_form);
  array.type = magic[2];
  const std::vector<std::uint8_t> sizes = file.read(size_bytes * magic[3]);
  if (sizes.size() < size_bytes * magic[3]) throw Error(cat(path, ": ends within its header"), "copy it again");
  std::int64_t bytes = bytes_of_value(array.type);
  for (std::size_t axis = 0; axis < magic[3]; ++axis) {
    array.shape.push_back(big_endian(sizes.data() + size_bytes * axis, size_bytes, false));
    if (__builtin_mul_overflow(bytes, array.shape.back(), &bytes))
      throw Error(cat(path, ": its header says more bytes than any file has"), "copy it again");
  }
  // One byte more than expected shows that the file is too long.
  array.bytes = file.read(static_cast<std::size_t>(bytes) + 1);
  const auto found = static_cast<std::int64_t>(array.bytes.size());
  if (found != bytes)
    throw Error(cat(path, ": has ", found < bytes ? std::to_string(found) : "more",
                    " bytes after its header, expected ", bytes),
                "copy or download it again");
  return array;
}

constexpr const char* pictures_first = "the file of the pictures comes first: idx IMAGES LABELS";

// Returns the name that HDF5 arrays of this type have, such as "f32".
std::string type_text(std::uint8_t type) {
  const char* const kind = type > 0x0c ? "f" : type == 0x08 ? "u" : "i";
  return cat(kind, 8 * bytes_of_value(type));
}

std::vector<double> numbers_of(const IdxArray& array) {
  const auto width = static_cast<std::size_t>(bytes_of_value(array.type));
  std::vector<double> numbers(array.bytes.size() / width);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::int64_t bits = big_endian(array.bytes.data() + i * width, width, array.type != 0x08);
    numbers[i] = array.type == 0x0d   ? std::bit_cast<float>(static_cast<std::uint32_t>(bits))
                 : array.type == 0x0e ? std::bit_cast<double>(bits)
                                      : static_cast<double>(bits);
  }
  return numbers;
}

std::string advice_on_other_labels(const IdxArray& array) {
  if (array.shape.size() > 2) return pictures_first;
  if (array.shape.size() == 1)
    return "write them again as whole numbers: labels.astype('u1'), or '>i4' for more than 256 classes";
  return "if each label is a row of zeros and a one (one-hot), make numbers of them: labels.argmax(axis=1)";
}

std::vector<std::int64_t> labels_of(const IdxArray& array, std::int64_t first_label) {
  if (array.shape.size() != 1 || array.type > 0x0c)
    throw Error(cat(array.path, ": holds ", array.type > 0x0c ? "floating-point" : "whole", " numbers of the shape ",
                    text_of(array.shape), ", expected integer labels (N)"),
                advice_on_other_labels(array));
  const auto width = static_cast<std::size_t>(bytes_of_value(array.type));
  std::vector<std::int64_t> labels(static_cast<std::size_t>(array.shape[0]));
  for (std::size_t row = 0; row < labels.size(); ++row) {
    labels[row] = big_endian(array.bytes.data() + row * width, width, array.type != 0x08) - first_label;
    if (labels[row] < 0)
      throw Error(cat(array.path, ": the label of row ", row, " is ", labels[row] + first_label),
                  labels[row] + first_label == 0 ? "the labels count from 0: leave out --first-label"
                                                 : "labels count from 0, or from --first-label");
  }
  return labels;
}

class IdxSource : public ListedImageSource {
 public:
  explicit IdxSource(const std::string& path) : array_(read_idx(path)) {
    const std::vector<std::int64_t>& shape = array_.shape;
    channels_ = shape.size() == 4 ? shape[3] : 1;
    if (array_.type != 0x08 || shape.size() < 3 || shape.size() > 4 || (channels_ != 1 && channels_ != 3))
      throw Error(
          cat(path, ": holds values of type 0x0", "0123456789abcdef"[array_.type], " and the shape ",
              text_of(array_.shape), ", expected u8 pixels (0x08) (N, H, W), or (N, H, W, C) with 1 or 3 channels"),
          advice());
    if (shape[0] == 0) throw Error(cat(path, ": holds no pictures"));
    if (std::min(shape[1], shape[2]) < 1 || std::max(shape[1], shape[2]) > 65500)
      throw Error(cat(path, ": has pictures of ", shape[1], " x ", shape[2],
                      " pixels, expected height and width from 1 to 65500"));
  }

  std::int64_t rows() const { return array_.shape[0]; }
  std::int64_t channels() const { return channels_; }
  std::string describe() const {
    return cat(rows(), " pictures of ", array_.shape[1], " x ", array_.shape[2], " x ", channels_);
  }

  FoundImage read(const ImageItem& item) const override {
    const std::int64_t bytes = array_.shape[1] * array_.shape[2] * channels_;
    const std::uint8_t* first = array_.bytes.data() + static_cast<std::int64_t>(item.offset) * bytes;
    FoundImage found;
    found.image = {array_.shape[1], array_.shape[2], channels_, std::vector<std::uint8_t>(first, first + bytes)};
    return found;
  }

 private:
  // Returns what to do with an array that has no u8 pixels.
  std::string advice() const {
    if (array_.shape.size() < 2) return pictures_first;
    if (array_.shape.size() == 2)
      return cat("if each row is a picture, give it two axes: x.reshape(-1, HEIGHT, WIDTH); if these are labels, ",
                 pictures_first);
    if (array_.type == 0x08) return "write 1 or 3 channels as the last axis, or leave that axis out";
    std::vector<double> numbers = numbers_of(array_);
    const auto not_finite = std::ranges::find_if(numbers, [](double number) { return !std::isfinite(number); });
    if (not_finite != numbers.end()) {
      const std::int64_t row = (not_finite - numbers.begin()) / (std::ssize(numbers) / array_.shape[0]);
      return cat(text_of(RowValue{row, *not_finite}), "; ", advice_on_not_finite(false));
    }
    if (numbers.empty()) return "";
    const auto [least, most] = std::ranges::minmax(numbers);
    return cat("its values are ", least, " to ", most, ": ",
               advice_on_range(type_text(array_.type), least, most, false, "x"));
  }

  IdxArray array_;
  std::int64_t channels_ = 1;
};

ImageListing list_rows(const IdxOptions& options, const std::vector<std::int64_t>& labels) {
  ImageListing listing;
  listing.root = options.images + ":";
  listing.unit = "rows";
  listing.first_label = options.first_label;
  if (!options.class_list.empty()) {
    listing.classes = read_class_list(options.class_list);
    expect_ids_in_order(listing.classes, options.class_list, options.first_label);
  } else {
    const auto highest = std::ranges::max_element(labels);
    if (const std::int64_t most = most_numbered_classes(std::ssize(labels)); *highest >= most)
      throw Error(
          cat(options.labels, ": the label of row ", highest - labels.begin(), " is ", *highest + options.first_label,
              ", expected less than ", most + options.first_label, " for ", labels.size(), " images"),
          "labels count from 0; --class-list names the classes");
    listing.classes = numbered_classes(*highest + 1);
  }
  const auto classes = static_cast<std::int64_t>(listing.classes.ids.size());
  std::vector<ImageItem>& items = listing.splits[options.split == "validation" ? validation_split : train_split];
  for (std::size_t row = 0; row < labels.size(); ++row) {
    if (labels[row] >= classes)
      throw Error(cat(options.labels, ": the label of row ", row, " is ", labels[row] + options.first_label,
                      ", expected ", options.first_label, " to ", options.first_label + classes - 1),
                  cat(options.class_list, " has ", classes, " classes"));
    items.push_back({cat("[", row, "]"), static_cast<std::int32_t>(labels[row]), -1, row, 0});
  }
  if (options.validation.value_or(0) > 0) hold_out_images(listing, options.seed, *options.validation);
  return listing;
}

void check(const IdxOptions& options) {
  check_split_options(options);
  if (!options.split.empty() && options.validation.value_or(0) > 0)
    throw Error("--split makes one split; it does not go with --validation");
  check_image_options(options);
}

}  // namespace

ImagesReport import_idx(const IdxOptions& options, const Ranks& ranks, std::ostream& log) {
  check(options);
  const IdxSource source(options.images);
  const std::vector<std::int64_t> labels = labels_of(read_idx(options.labels), options.first_label);
  if (static_cast<std::int64_t>(labels.size()) != source.rows())
    throw Error(cat(options.images, ": has ", source.rows(), " pictures, but ", options.labels, " has ", labels.size(),
                    " labels"),
                "take both files of one split");
  const std::unique_ptr<OutputFiles> files = make_output_files(options, ranks);
  const ImageListing listing = list_rows(options, labels);
  RecordOptions records = record_options(options);
  records.grey_pixels = source.channels() == 1;
  if (ranks.first()) log << "idx         " << options.images << ": " << source.describe() << "\n";
  return convert_listing(options, records, listing, source, std::filesystem::path(options.images).filename().string(),
                         files.get(), ranks, log);
}

}  // namespace ringtrain
