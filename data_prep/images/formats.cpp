#include "data_prep/images/formats.h"

#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/error.h"

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

namespace {

constexpr png_uint_32 largest_png_side = 65500;  // the limit of JPEG, too
constexpr std::int64_t most_pixels = std::int64_t{1} << 28;

// The largest ratio of deflate's compression, and a number of bytes that is always accepted.
constexpr std::int64_t most_packing = 1032, few_bytes = 1 << 20;

// libpng reports errors by longjmp. Data that is needed after a longjmp is stored here, not on the stack.
struct Transfer {
  std::span<const std::uint8_t> input;
  std::size_t position = 0;
  std::vector<png_bytep> rows;
  Image image;
  char reason[200] = "";
};

[[noreturn]] void on_error(png_structp png, png_const_charp reason) {
  auto* transfer = static_cast<Transfer*>(png_get_error_ptr(png));
  std::strncpy(transfer->reason, reason, sizeof transfer->reason - 1);
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep out, std::size_t count) {
  auto* transfer = static_cast<Transfer*>(png_get_io_ptr(png));
  if (count > transfer->input.size() - transfer->position) png_error(png, "the file ends too early");
  std::memcpy(out, transfer->input.data() + transfer->position, count);
  transfer->position += count;
}

// Returns false after an error. longjmp skips destructors, so the functions that it leaves must not own objects with
// destructors.
bool decode(png_structp png, png_infop info, Transfer& transfer) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_read_fn(png, &transfer, read_bytes);
  png_set_user_limits(png, largest_png_side, largest_png_side);
  png_read_info(png, info);
  const auto packed = static_cast<std::int64_t>(png_get_rowbytes(png, info)) * png_get_image_height(png, info);
  if (packed > std::max<std::int64_t>(few_bytes, static_cast<std::int64_t>(transfer.input.size()) * most_packing))
    png_error(png, "claims to have more pixels than its bytes can hold");
  png_set_expand(png);
  png_set_strip_16(png);
  png_set_strip_alpha(png);
  png_set_gray_to_rgb(png);
  png_set_interlace_handling(png);
  png_read_update_info(png, info);
  transfer.image.height = png_get_image_height(png, info);
  transfer.image.width = png_get_image_width(png, info);
  transfer.image.channels = 3;
  if (transfer.image.height * transfer.image.width > most_pixels) png_error(png, "has more than 268435456 pixels");
  const std::size_t row = png_get_rowbytes(png, info);
  if (row != 3 * static_cast<std::size_t>(transfer.image.width)) png_error(png, "has an unknown kind of pixels");
  transfer.image.pixels.resize(row * static_cast<std::size_t>(transfer.image.height));
  for (std::int64_t y = 0; y < transfer.image.height; ++y)
    transfer.rows.push_back(transfer.image.pixels.data() + static_cast<std::size_t>(y) * row);
  png_read_image(png, transfer.rows.data());
  png_read_end(png, nullptr);
  return true;
}

}  // namespace

bool is_png(std::span<const std::uint8_t> bytes) {
  return bytes.size() >= 8 && png_sig_cmp(bytes.data(), 0, 8) == 0;
}

bool png_has_16_bits(std::span<const std::uint8_t> bytes) {
  constexpr std::size_t depth = 24;  // the place of the bit depth, in bytes
  return bytes.size() > depth && bytes[depth] == 16;
}

bool png_has_alpha(std::span<const std::uint8_t> bytes) {
  constexpr std::size_t signature = 8, colour_type = 25, frame = 12;  // bytes; a chunk's frame: length, type, checksum
  if (bytes.size() <= colour_type) return false;
  if ((bytes[colour_type] & PNG_COLOR_MASK_ALPHA) != 0) return true;
  for (std::size_t at = signature; at + frame <= bytes.size();) {
    const std::string_view type(reinterpret_cast<const char*>(bytes.data()) + at + 4, 4);
    if (type == "tRNS") return true;
    if (type == "IDAT") return false;
    at += frame + png_get_uint_32(bytes.data() + at);
  }
  return false;
}

Image decode_png(std::span<const std::uint8_t> bytes) {
  Transfer transfer;
  transfer.input = bytes;
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &transfer, on_error, on_warning);
  png_infop info = png == nullptr ? nullptr : png_create_info_struct(png);
  const bool good = info != nullptr && decode(png, info, transfer);
  png_destroy_read_struct(&png, &info, nullptr);
  if (!good) throw Error(cat("PNG: ", transfer.reason[0] == '\0' ? "libpng cannot be used" : transfer.reason));
  return std::move(transfer.image);
}

}  // namespace ringtrain
