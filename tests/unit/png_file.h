// Writes PNG files for tests.
#pragma once

#include <gtest/gtest.h>
#include <png.h>

#include <cstdint>
#include <vector>

#include "data/jpeg.h"

namespace ringtrain {

// `format` is one of libpng's PNG_FORMAT_*. A palette has `colours` entries.
inline std::vector<std::uint8_t> png_of(std::uint32_t format, std::int64_t height, std::int64_t width,
                                        const void* pixels, const void* palette = nullptr, std::uint32_t colours = 0) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = format;
  image.colormap_entries = colours;
  png_alloc_size_t size = 0;
  png_image_write_to_memory(&image, nullptr, &size, 0, pixels, 0, palette);
  std::vector<std::uint8_t> bytes(size);
  EXPECT_NE(png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels, 0, palette), 0) << image.message;
  bytes.resize(size);
  return bytes;
}

// Encodes an image of 1 or 3 channels.
inline std::vector<std::uint8_t> encode_png(const Image& image) {
  return png_of(image.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB, image.height, image.width, image.pixels.data());
}

}  // namespace ringtrain
