// libjpeg-turbo behind RAII: whole images, for the converter and the verifier. Training reads through
// image_transform.h, which decodes only what it needs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ringtrain {

// Interleaved u8 [height, width, channels].
struct Image {
  std::int64_t height = 0, width = 0, channels = 3;
  std::vector<std::uint8_t> pixels;
};

struct JpegHeader {
  std::int64_t height = 0, width = 0;
  std::int64_t components = 0;  // of the file: 1 grey, 3 colour, 4 CMYK or YCCK
};

// All throw Error with libjpeg's own reason. A file that ends too early or has corrupt data is an error, never grey
// rows: libjpeg only warns about it.
JpegHeader read_jpeg_header(std::span<const std::uint8_t> bytes);
// ISLOW, fancy upsampling, as Pillow's convert("RGB") gives it: channels 3; CMYK and YCCK as Pillow converts them.
Image decode_jpeg(std::span<const std::uint8_t> bytes);
// Quality 1..100, 4:2:0, as Pillow's save(quality=...) writes it.
std::vector<std::uint8_t> encode_jpeg(const Image& image, int quality);
// Pillow's BILINEAR (triangle filter with anti-aliasing), bit for bit.
Image resize_bilinear(const Image& image, std::int64_t height, std::int64_t width);

}  // namespace ringtrain
