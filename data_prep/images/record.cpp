#include "data_prep/images/record.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/system_limits.h"
#include "data_prep/common/input_file.h"
#include "data_prep/images/formats.h"

namespace ringtrain {
namespace {

constexpr std::int64_t other_files = 256;  // that stay open at the same time

class FileSource : public ListedImageSource {
 public:
  explicit FileSource(const ImageListing& listing)
      : listing_(listing),
        archives_(may_open_files(std::ssize(listing.archives) + other_files) ? listing.archives.size() : 0) {}

  FoundImage read(const ImageItem& item) const override {
    FoundImage found;
    if (!item.problem.empty()) throw Error(item.problem);
    if (item.archive < 0) {
      const InputFile file(listing_.root + item.key);
      found.bytes.resize(file.bytes());
      file.read(0, found.bytes);
      return found;
    }
    const std::shared_ptr<const InputFile> archive = open(static_cast<std::size_t>(item.archive));
    if (item.offset + item.bytes > archive->bytes()) throw Error("the tar file ends inside this member");
    found.bytes.resize(item.bytes);
    archive->read(item.offset, found.bytes);
    return found;
  }

 private:
  std::shared_ptr<const InputFile> open(std::size_t archive) const {
    const std::string& path = listing_.archives[archive];
    if (archives_.empty()) return std::make_shared<const InputFile>(path);
    const std::lock_guard<std::mutex> lock(opening_);
    if (!archives_[archive]) archives_[archive] = std::make_shared<const InputFile>(path);
    return archives_[archive];
  }

  const ImageListing& listing_;
  mutable std::mutex opening_;
  mutable std::vector<std::shared_ptr<const InputFile>> archives_;  // open archives; empty: too many to keep open
};

}  // namespace

std::unique_ptr<ListedImageSource> make_file_source(const ImageListing& listing) {
  return std::make_unique<FileSource>(listing);
}

namespace {

constexpr std::int64_t largest_side = 65500;  // libjpeg's limit

bool is_jpeg(std::span<const std::uint8_t> bytes) {
  return bytes.size() >= 3 && bytes[0] == 0xFF && bytes[1] == 0xD8 && bytes[2] == 0xFF;
}

std::string kind_of(std::span<const std::uint8_t> bytes) {
  const std::string_view start(reinterpret_cast<const char*>(bytes.data()), std::min<std::size_t>(bytes.size(), 17));
  if (start.starts_with("GIF8")) return "GIF";
  if (start.starts_with("BM")) return "BMP";
  if (start.starts_with("RIFF") && start.size() >= 12 && start.substr(8).starts_with("WEBP")) return "WebP";
  if (start.starts_with("II*") || start.starts_with("MM")) return "TIFF";
  if (start.starts_with("P5") || start.starts_with("P6")) return "PNM";
  if (start.size() >= 12 && start.substr(4, 4) == "ftyp") return start.substr(8, 4) == "avif" ? "AVIF" : "HEIC";
  if (start.size() >= 8 && start.substr(4, 4) == "jP  ") return "JPEG 2000";
  if (start.starts_with("\xFF\x4F\xFF\x51")) return "JPEG 2000";
  if (start.starts_with("\xFF\x0A") || (start.size() >= 8 && start.substr(4, 4) == "JXL ")) return "JPEG XL";
  if (start.starts_with("version https://g")) return "a pointer of Git LFS";
  if (start.starts_with("<")) return "HTML or XML";
  return "";
}

Image to_colour(Image image) {
  if (image.channels == 3) return image;
  Image colour{image.height, image.width, 3, {}};
  colour.pixels.reserve(3 * image.pixels.size());
  for (const std::uint8_t value : image.pixels) colour.pixels.insert(colour.pixels.end(), 3, value);
  return colour;
}

// Resizes the short side as torchvision's Resize does: the length of the long side is truncated.
Image resize_short_side(const Image& image, std::int64_t side) {
  const std::int64_t shorter = std::min(image.height, image.width), longer = std::max(image.height, image.width);
  const std::int64_t long_side = std::min(largest_side, side * longer / shorter);
  return image.height <= image.width ? resize_bilinear(image, side, long_side)
                                     : resize_bilinear(image, long_side, side);
}

// Cuts the central square as torchvision's CenterCrop does: offsets are rounded half to even.
Image centre_square(const Image& image, std::int64_t side) {
  const auto top = static_cast<std::int64_t>(std::nearbyint(static_cast<double>(image.height - side) / 2));
  const auto left = static_cast<std::int64_t>(std::nearbyint(static_cast<double>(image.width - side) / 2));
  Image square{side, side, image.channels, {}};
  const auto row = static_cast<std::size_t>(side * image.channels);
  square.pixels.resize(row * static_cast<std::size_t>(side));
  for (std::int64_t y = 0; y < side; ++y) {
    std::memcpy(square.pixels.data() + static_cast<std::size_t>(y) * row,
                image.pixels.data() + ((top + y) * image.width + left) * image.channels, row);
  }
  return square;
}

}  // namespace

void PixelSums::add(const Image& image) {
  const auto channels = static_cast<std::size_t>(image.channels);
  for (std::size_t c = 0; c < 3; ++c) {
    const std::size_t from = std::min(c, channels - 1);
    std::uint64_t plain = 0, squares = 0;
    for (std::size_t i = from; i < image.pixels.size(); i += channels) {
      const std::uint64_t value = image.pixels[i];
      plain += value;
      squares += value * value;
    }
    sum[c] += plain;
    sum_of_squares[c] += squares;
  }
  pixels += static_cast<std::uint64_t>(image.height * image.width);
}

void PixelSums::add(const PixelSums& other) {
  for (std::size_t c = 0; c < 3; ++c) {
    sum[c] += other.sum[c];
    sum_of_squares[c] += other.sum_of_squares[c];
  }
  pixels += other.pixels;
}

ImageRecord make_record(FoundImage found, const RecordOptions& options, bool decode, PixelSums* sums) {
  ImageRecord record;
  std::optional<Image> image;
  bool must_encode = options.raw;
  int orientation = 1;
  const auto convert = [&](const std::string& why) {
    record.why = why;
    must_encode = true;
  };
  // Only check_jpeg() sees warnings. The full decoding takes far longer.
  const auto decode_and_note = [&] {
    Image decoded = decode_jpeg(found.bytes);
    if (decode) record.warning = check_jpeg(found.bytes).warning;
    return decoded;
  };
  if (found.bytes.empty() && !found.image.pixels.empty()) {
    image = std::move(found.image);
    must_encode = true;
  } else if (found.bytes.empty()) {
    throw Error("is empty (0 bytes)");
  } else if (is_png(found.bytes)) {
    image = decode_png(found.bytes);
    orientation = png_orientation(found.bytes);
    record.with_alpha = png_has_alpha(found.bytes);
    record.deep = png_has_16_bits(found.bytes);
    record.deep_and_dark =
        record.deep && std::ranges::all_of(image->pixels, [](std::uint8_t value) { return value < 16; });
    convert(record.with_alpha ? "PNG with alpha" : "PNG");
  } else if (is_jpeg(found.bytes)) {
    const JpegHeader header = read_jpeg_header(found.bytes);
    record.height = header.height;
    record.width = header.width;
    record.channels = header.components;
    orientation = jpeg_orientation(found.bytes);
    if (header.components == 4) convert("CMYK JPEG");
  } else {
    const std::string kind = kind_of(found.bytes);
    throw Error(kind.empty() ? "is neither a JPEG nor a PNG file"
                             : cat("is ", kind, ", neither a JPEG nor a PNG file"));
  }
  record.turned = orientation != 1;
  const bool turns = record.turned && options.upright;
  if (turns) convert(cat(record.why, record.why.empty() ? "" : ", ", "EXIF orientation ", orientation));
  if (!image && turns) image = decode_and_note();
  if (turns) image = turned_upright(*image, orientation);
  if (image) {
    record.height = image->height;
    record.width = image->width;
    record.channels = image->channels;
  }
  const bool shrinks = options.short_side > 0 && std::min(record.height, record.width) > options.short_side;
  const bool squares = options.size > 0 && (record.height != options.size || record.width != options.size);
  must_encode = must_encode || shrinks || squares;
  if (!image && (must_encode || sums != nullptr)) image = decode_and_note();
  if (!image && decode) record.warning = check_jpeg(found.bytes).warning;
  if (shrinks) image = resize_short_side(*image, options.short_side);
  if (squares) {
    if (std::min(image->height, image->width) != options.size) image = resize_short_side(*image, options.size);
    image = centre_square(*image, options.size);
  }
  if (sums != nullptr) sums->add(*image);
  if (!must_encode) {
    record.bytes = std::move(found.bytes);
    return record;
  }
  record.resized = shrinks || squares;
  if (!options.raw || !options.grey_pixels) image = to_colour(std::move(*image));
  record.height = image->height;
  record.width = image->width;
  record.channels = image->channels;
  record.bytes = options.raw ? std::move(image->pixels) : encode_jpeg(*image, options.quality);
  return record;
}

}  // namespace ringtrain
