#include "data_prep/picture_record.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "data_prep/jpeg_check.h"
#include "data_prep/png.h"

namespace ringtrain {
namespace {

constexpr std::int64_t largest_side = 65500;  // of a JPEG, as libjpeg sees it

bool is_jpeg(std::span<const std::uint8_t> bytes) {
  return bytes.size() >= 3 && bytes[0] == 0xFF && bytes[1] == 0xD8 && bytes[2] == 0xFF;
}

std::string kind_of(std::span<const std::uint8_t> bytes) {
  const std::string_view start(reinterpret_cast<const char*>(bytes.data()), std::min<std::size_t>(bytes.size(), 16));
  if (start.starts_with("GIF8")) return "GIF";
  if (start.starts_with("BM")) return "BMP";
  if (start.starts_with("RIFF") && start.substr(8).starts_with("WEBP")) return "WebP";
  if (start.starts_with("II*") || start.starts_with("MM")) return "TIFF";
  if (start.starts_with("P5") || start.starts_with("P6")) return "PNM";
  if (start.starts_with("<")) return "HTML or XML";
  return "";
}

Picture to_colour(Picture picture) {
  if (picture.channels == 3) return picture;
  Picture colour{picture.height, picture.width, 3, {}};
  colour.pixels.reserve(3 * picture.pixels.size());
  for (const std::uint8_t value : picture.pixels) colour.pixels.insert(colour.pixels.end(), 3, value);
  return colour;
}

// torchvision's Resize of the short side: the long one truncated.
Picture resize_short_side(const Picture& picture, std::int64_t side) {
  const std::int64_t shorter = std::min(picture.height, picture.width),
                     longer = std::max(picture.height, picture.width);
  const std::int64_t long_side = std::min(largest_side, side * longer / shorter);
  return picture.height <= picture.width ? resize_bilinear(picture, side, long_side)
                                         : resize_bilinear(picture, long_side, side);
}

// torchvision's CenterCrop: offsets rounded half to even.
Picture centre_square(const Picture& picture, std::int64_t side) {
  const auto top = static_cast<std::int64_t>(std::nearbyint(static_cast<double>(picture.height - side) / 2));
  const auto left = static_cast<std::int64_t>(std::nearbyint(static_cast<double>(picture.width - side) / 2));
  Picture square{side, side, picture.channels, {}};
  const auto row = static_cast<std::size_t>(side * picture.channels);
  square.pixels.resize(row * static_cast<std::size_t>(side));
  for (std::int64_t y = 0; y < side; ++y) {
    std::memcpy(square.pixels.data() + static_cast<std::size_t>(y) * row,
                picture.pixels.data() + ((top + y) * picture.width + left) * picture.channels, row);
  }
  return square;
}

}  // namespace

void PixelSums::add(const Picture& picture) {
  const auto channels = static_cast<std::size_t>(picture.channels);
  for (std::size_t c = 0; c < 3; ++c) {
    const std::size_t from = std::min(c, channels - 1);
    std::uint64_t plain = 0, squares = 0;
    for (std::size_t i = from; i < picture.pixels.size(); i += channels) {
      const std::uint64_t value = picture.pixels[i];
      plain += value;
      squares += value * value;
    }
    sum[c] += plain;
    sum_of_squares[c] += squares;
  }
  pixels += static_cast<std::uint64_t>(picture.height * picture.width);
}

void PixelSums::add(const PixelSums& other) {
  for (std::size_t c = 0; c < 3; ++c) {
    sum[c] += other.sum[c];
    sum_of_squares[c] += other.sum_of_squares[c];
  }
  pixels += other.pixels;
}

PictureRecord make_record(FoundPicture found, const RecordOptions& options, bool decode, PixelSums* sums) {
  PictureRecord record;
  std::optional<Picture> picture;
  bool must_encode = options.raw;
  const auto convert = [&](const std::string& why) {
    record.change = Change::converted;
    record.why = why;
    must_encode = true;
  };
  if (found.bytes.empty() && !found.picture.pixels.empty()) {
    picture = std::move(found.picture);
    must_encode = true;
  } else if (found.bytes.empty()) {
    throw Error("is empty (0 bytes)");
  } else if (is_png(found.bytes)) {
    picture = decode_png(found.bytes);
    convert("PNG");
  } else if (is_jpeg(found.bytes)) {
    const JpegHeader header = read_jpeg_header(found.bytes);
    record.height = header.height;
    record.width = header.width;
    record.channels = header.components;
    if (header.components == 4) convert("CMYK JPEG");
  } else {
    const std::string kind = kind_of(found.bytes);
    throw Error(kind.empty() ? "is neither a JPEG nor a PNG file"
                             : cat("is ", kind, ", neither a JPEG nor a PNG file"));
  }
  if (picture) {
    record.height = picture->height;
    record.width = picture->width;
    record.channels = picture->channels;
  }
  const bool shrinks = options.short_side > 0 && std::min(record.height, record.width) > options.short_side;
  const bool squares = options.size > 0 && (record.height != options.size || record.width != options.size);
  must_encode = must_encode || shrinks || squares;
  if (!picture && (must_encode || sums != nullptr)) picture = decode_jpeg(found.bytes);
  if (!picture && decode) check_jpeg(found.bytes);
  if (shrinks) picture = resize_short_side(*picture, options.short_side);
  if (squares) {
    if (std::min(picture->height, picture->width) != options.size) picture = resize_short_side(*picture, options.size);
    picture = centre_square(*picture, options.size);
  }
  if (sums != nullptr) sums->add(*picture);
  if (!must_encode) {
    record.bytes = std::move(found.bytes);
    return record;
  }
  if ((shrinks || squares) && record.change == Change::none) record.change = Change::resized;
  if (!options.raw || !options.grey_pixels) picture = to_colour(std::move(*picture));
  record.height = picture->height;
  record.width = picture->width;
  record.channels = picture->channels;
  record.bytes = options.raw ? std::move(picture->pixels) : encode_jpeg(*picture, options.quality);
  return record;
}

}  // namespace ringtrain
