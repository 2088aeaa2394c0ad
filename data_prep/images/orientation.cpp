#include "data_prep/images/orientation.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace ringtrain {
namespace {

using Bytes = std::span<const std::uint8_t>;

// Reads integers of a TIFF structure, in its byte order. Values beyond the end are 0.
struct Tiff {
  Bytes bytes;
  bool little = true;

  std::uint32_t value(std::size_t at, std::size_t width) const {
    if (at > bytes.size() || width > bytes.size() - at) return 0;
    std::uint32_t result = 0;
    for (std::size_t i = 0; i < width; ++i) result = (result << 8) | bytes[at + (little ? width - 1 - i : i)];
    return result;
  }
};

// `exif` begins with the header of a TIFF file: byte order, 42, offset of the first directory.
int orientation_of(Bytes exif) {
  if (exif.size() < 8 || exif[0] != exif[1] || (exif[0] != 'I' && exif[0] != 'M')) return 1;
  const Tiff tiff{exif, exif[0] == 'I'};
  constexpr std::size_t entry_bytes = 12;
  constexpr std::uint32_t orientation_tag = 0x112, type_short = 3;
  const std::size_t directory = tiff.value(4, 4);
  const std::uint32_t entries = tiff.value(directory, 2);
  for (std::uint32_t i = 0; i < entries; ++i) {
    const std::size_t at = directory + 2 + i * entry_bytes;
    if (at + entry_bytes > exif.size()) break;
    if (tiff.value(at, 2) != orientation_tag) continue;
    const std::uint32_t value = tiff.value(at + 8, tiff.value(at + 2, 2) == type_short ? 2 : 4);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

bool begins_with(Bytes bytes, std::string_view text) {
  return bytes.size() >= text.size() && std::memcmp(bytes.data(), text.data(), text.size()) == 0;
}

}  // namespace

int jpeg_orientation(Bytes bytes) {
  using namespace std::string_view_literals;
  constexpr std::uint8_t app1 = 0xE1, start_of_scan = 0xDA, fill = 0xFF;
  for (std::size_t at = 2; at + 4 <= bytes.size();) {
    if (bytes[at] != 0xFF) return 1;
    const std::uint8_t marker = bytes[at + 1];
    if (marker == fill) {
      ++at;
      continue;
    }
    if (marker == start_of_scan) return 1;
    const std::size_t length = std::size_t{bytes[at + 2]} << 8 | bytes[at + 3];
    if (length < 2 || length > bytes.size() - at - 2) return 1;
    const Bytes content = bytes.subspan(at + 4, length - 2);
    if (marker == app1 && begins_with(content, "Exif\0\0"sv)) return orientation_of(content.subspan(6));
    at += 2 + length;
  }
  return 1;
}

int png_orientation(Bytes bytes) {
  constexpr std::size_t signature = 8, around = 12;  // a chunk: length, type, content, checksum
  for (std::size_t at = signature; at + around <= bytes.size();) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < 4; ++i) length = length << 8 | bytes[at + i];
    if (length > bytes.size() - at - around) return 1;
    if (begins_with(bytes.subspan(at + 4), "eXIf")) return orientation_of(bytes.subspan(at + 8, length));
    at += around + length;
  }
  return 1;
}

Image turned_upright(const Image& image, int orientation) {
  const bool exchanged = orientation >= 5;
  // Where the stored picture's last row or column becomes the first one.
  const bool from_bottom = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const bool from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  Image turned = image;
  if (exchanged) std::swap(turned.height, turned.width);
  const std::int64_t channels = image.channels;
  for (std::int64_t y = 0; y < turned.height; ++y) {
    for (std::int64_t x = 0; x < turned.width; ++x) {
      const std::int64_t row = exchanged ? x : y, column = exchanged ? y : x;
      const std::int64_t from_y = from_bottom ? image.height - 1 - row : row;
      const std::int64_t from_x = from_right ? image.width - 1 - column : column;
      std::copy_n(image.pixels.data() + (from_y * image.width + from_x) * channels, channels,
                  turned.pixels.data() + (y * turned.width + x) * channels);
    }
  }
  return turned;
}

}  // namespace ringtrain
