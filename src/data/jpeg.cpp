#include "data/jpeg.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "data/jpeg_error.h"
#include "data/jpeg_reader.h"
#include "data/resize.h"

namespace ringtrain {
namespace {

Image blank(std::int64_t height, std::int64_t width, std::int64_t channels) {
  return {height, width, channels, std::vector<std::uint8_t>(static_cast<std::size_t>(height * width * channels))};
}

void check(const Image& image) {
  if (image.height <= 0 || image.width <= 0 || (image.channels != 1 && image.channels != 3) ||
      std::ssize(image.pixels) != image.height * image.width * image.channels)
    throw Error(cat("an image of ", image.height, " x ", image.width, " x ", image.channels, " with ",
                    image.pixels.size(), " values; 1 or 3 channels and all their values were expected"));
}

// The state of libjpeg while it writes. The destructor frees it.
struct JpegWriter {
  JpegErrors errors;
  jpeg_compress_struct info{};
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  JpegWriter() { info.err = set_up(errors); }
  JpegWriter(const JpegWriter&) = delete;
  ~JpegWriter() {
    jpeg_destroy_compress(&info);
    std::free(bytes);
  }
};

}  // namespace

std::string shape_fault(const std::array<std::int64_t, 3>& found, std::span<const std::int32_t, 3> stored) {
  if (std::ranges::equal(found, stored)) return "";
  return cat("is ", found[0], " x ", found[1], " x ", found[2], " (height x width x channels), but 'shapes' says ",
             stored[0], " x ", stored[1], " x ", stored[2]);
}

std::string shape_fault(const JpegHeader& jpeg, std::span<const std::int32_t, 3> stored) {
  const bool grey_as_colour = jpeg.components == 1 && stored[2] == 3;
  const std::array<std::int64_t, 3> found = {jpeg.height, jpeg.width, grey_as_colour ? 3 : jpeg.components};
  return shape_fault(found, stored);
}

JpegHeader read_jpeg_header(std::span<const std::uint8_t> bytes) {
  return JpegReader(bytes).header();
}

Image decode_jpeg(std::span<const std::uint8_t> bytes) {
  JpegReader reader(bytes);
  Image image = blank(reader.header().height, reader.header().width, 3);
  const auto row_bytes = static_cast<std::size_t>(image.width * 3);
  reader.start({0, 0, image.height, image.width}, 0);
  for (std::int64_t row = 0; row < image.height; row += 2) {
    const auto [first, second] = reader.read(std::min<std::int64_t>(2, image.height - row));
    std::uint8_t* out = image.pixels.data() + row * image.width * 3;
    std::memcpy(out, first, row_bytes);
    if (second != nullptr) std::memcpy(out + row_bytes, second, row_bytes);
  }
  reader.finish();
  return image;
}

std::vector<std::uint8_t> encode_jpeg(const Image& image, int quality) {
  check(image);
  if (quality < 1 || quality > 100) throw Error(cat("JPEG quality ", quality, " is not in 1 ... 100"));
  JpegWriter writer;
  jpeg_compress_struct& info = writer.info;
  guarded(writer.errors, [&] {
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, &writer.bytes, &writer.size);
    info.image_width = static_cast<JDIMENSION>(image.width);
    info.image_height = static_cast<JDIMENSION>(image.height);
    info.input_components = static_cast<int>(image.channels);
    info.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, quality, TRUE);
    jpeg_start_compress(&info, TRUE);
    while (info.next_scanline < info.image_height) {
      auto* row = const_cast<JSAMPLE*>(image.pixels.data()) + static_cast<std::size_t>(info.next_scanline) *
                                                                  info.image_width *
                                                                  static_cast<unsigned>(info.input_components);
      jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
  });
  return {writer.bytes, writer.bytes + writer.size};
}

Image resize_bilinear(const Image& image, std::int64_t height, std::int64_t width) {
  check(image);
  if (height <= 0 || width <= 0) throw Error(cat("an image cannot be resized to ", height, " x ", width));
  BilinearResizer resizer;
  Image result = blank(height, width, 3);
  resizer.start({image.height, height, 0, height}, {image.width, width, 0, width}, result.pixels.data(), width * 3);
  const auto stride = static_cast<std::size_t>(image.width * 3 + resizer.padding_bytes());
  std::vector<std::uint8_t> rows(stride * 2);
  for (std::int64_t row = 0; row < image.height; row += 2) {
    const std::int64_t count = std::min<std::int64_t>(2, image.height - row);
    for (std::int64_t i = 0; i < count; ++i)
      copy_rgb(image.pixels.data() + (row + i) * image.width * image.channels, image.channels, image.width,
               rows.data() + static_cast<std::size_t>(i) * stride);
    resizer.push(rows.data(), count > 1 ? rows.data() + stride : nullptr);
  }
  if (image.channels == 3) return result;
  Image grey = blank(height, width, 1);
  for (std::size_t i = 0; i < grey.pixels.size(); ++i) grey.pixels[i] = result.pixels[i * 3];
  return grey;
}

}  // namespace ringtrain
