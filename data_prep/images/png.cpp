#include "data_prep/images/png.h"

#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <string>

#include "base/error.h"

namespace ringtrain {
namespace {

constexpr png_uint_32 largest_side = 65500;  // the limit of JPEG, too
constexpr std::int64_t most_pixels = std::int64_t{1} << 28;

constexpr std::int64_t most_packing = 1032, few_bytes = 1 << 20;  // deflate's largest ratio; a size always accepted

// libpng reports errors by longjmp. Data that is needed after a longjmp is stored here, not on the stack.
struct Transfer {
  std::span<const std::uint8_t> input;
  std::size_t position = 0;
  std::vector<std::uint8_t> output;
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

void write_bytes(png_structp png, png_bytep bytes, std::size_t count) {
  auto* transfer = static_cast<Transfer*>(png_get_io_ptr(png));
  transfer->output.insert(transfer->output.end(), bytes, bytes + count);
}

void flush_bytes(png_structp) {}

void make_rows(Transfer& transfer) {
  Image& image = transfer.image;
  const auto stride = static_cast<std::size_t>(image.width * image.channels);
  for (std::int64_t y = 0; y < image.height; ++y)
    transfer.rows.push_back(image.pixels.data() + static_cast<std::size_t>(y) * stride);
}

// Returns false after an error. longjmp skips destructors, so the frames that it leaves must not have any.
bool decode(png_structp png, png_infop info, Transfer& transfer) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_read_fn(png, &transfer, read_bytes);
  png_set_user_limits(png, largest_side, largest_side);
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
  make_rows(transfer);
  png_read_image(png, transfer.rows.data());
  png_read_end(png, nullptr);
  return true;
}

bool encode(png_structp png, png_infop info, Transfer& transfer) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_write_fn(png, &transfer, write_bytes, flush_bytes);
  png_set_IHDR(png, info, static_cast<png_uint_32>(transfer.image.width),
               static_cast<png_uint_32>(transfer.image.height), 8,
               transfer.image.channels == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(png, info);
  png_write_image(png, transfer.rows.data());
  png_write_end(png, info);
  return true;
}

}  // namespace

bool is_png(std::span<const std::uint8_t> bytes) {
  return bytes.size() >= 8 && png_sig_cmp(bytes.data(), 0, 8) == 0;
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

std::vector<std::uint8_t> encode_png(const Image& image) {
  Transfer transfer;
  transfer.image = image;
  make_rows(transfer);
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &transfer, on_error, on_warning);
  png_infop info = png == nullptr ? nullptr : png_create_info_struct(png);
  const bool good = info != nullptr && encode(png, info, transfer);
  png_destroy_write_struct(&png, &info);
  if (!good) throw Error(cat("PNG: ", transfer.reason[0] == '\0' ? "libpng cannot be used" : transfer.reason));
  return std::move(transfer.output);
}

}  // namespace ringtrain
