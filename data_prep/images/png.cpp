#include "data_prep/images/png.h"

#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ringtrain {
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
