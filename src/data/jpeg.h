// Decodes and encodes whole JPEG images with libjpeg-turbo, for the converter and the verifier. Training uses
// image_transform.h, which decodes only the pixels that it needs.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ringtrain {

// An image with interleaved channels: u8 [height, width, channels].
struct Image {
  std::int64_t height = 0, width = 0, channels = 3;
  std::vector<std::uint8_t> pixels;
};

struct JpegHeader {
  std::int64_t height = 0, width = 0;
  std::int64_t components = 0;  // in the file: 1 grey, 3 colour, 4 CMYK or YCCK
};

// Compares the shape [height, width, channels] of a picture with its entry in a data set's `shapes`. Returns what
// differs, or "" if nothing does.
std::string shape_fault(const std::array<std::int64_t, 3>& found, std::span<const std::int32_t, 3> stored);
// Compares a JPEG with its entry [height, width, channels] of a data set's `shapes`. A grey file may have 1 or 3
// channels there, because training decodes it to 3. Returns what differs, or "" if nothing does.
std::string shape_fault(const JpegHeader& jpeg, std::span<const std::int32_t, 3> stored);

// All functions throw Error. An error of libjpeg has libjpeg's own reason. JPEGs of more than 2^28 pixels, of more
// pixels than their bytes can hold, of more than 500 scans, or with other than 1, 3 or 4 components are refused. For
// decode_jpeg(), a file that ends too early or has corrupt data is an error, although libjpeg only warns and fills the
// rest with grey.
JpegHeader read_jpeg_header(std::span<const std::uint8_t> bytes);
// Returns three channels as Pillow's convert("RGB") does, also for CMYK and YCCK. It uses libjpeg's exact integer
// transform (ISLOW) and smooth upsampling of colours ("fancy upsampling").
Image decode_jpeg(std::span<const std::uint8_t> bytes);
// Encodes with quality 1 to 100, as Pillow's save(quality=...) does. Colours have half the resolution (4:2:0).
std::vector<std::uint8_t> encode_jpeg(const Image& image, int quality);
// Resizes as Pillow's BILINEAR does (triangle filter with anti-aliasing), bit for bit.
Image resize_bilinear(const Image& image, std::int64_t height, std::int64_t width);

// Decodes chosen rows and columns of one JPEG to RGB. Only jpeg.cpp and image_transform.cpp use it.

// A rectangle of pixels.
struct PixelBox {
  std::int64_t top = 0, left = 0, height = 0, width = 0;
};

// Pixels equal those of Pillow's convert("RGB"), bit for bit, for every part that is decoded. Decoding uses ISLOW and
// fancy upsampling; neighbouring pixels that upsampling needs are decoded too. Grey is repeated. CMYK and YCCK count as
// inverted, as Adobe writes them, and are converted by Pillow's formula.
//
// Warnings of libjpeg about lost data are errors: premature end, bad Huffman codes, missing restart markers. Warnings
// that do not concern pixels are ignored: extraneous bytes before a marker, unknown Adobe transforms, odd scan
// parameters, bad ICC chunks. Pillow reads such files, and photographs from the web have them.
class JpegReader {
 public:
  explicit JpegReader(std::span<const std::uint8_t> bytes);  // reads the header; `bytes` must outlive this
  ~JpegReader();
  JpegReader(const JpegReader&) = delete;
  const JpegHeader& header() const { return header_; }

  // Prepares to decode `box`. Its rows are then read in order. May be called once. After the end of each row,
  // `padding_bytes` more bytes may be read.
  void start(const PixelBox& box, std::int64_t padding_bytes);
  // Returns the next `count` (1 or 2) rows of the box, u8 [width, 3]. They are valid until the next call.
  struct Rows {
    const std::uint8_t *first, *second;  // second: nullptr when count is 1
  };
  Rows read(std::int64_t count);
  // Checks the end of the file. Call it after all rows of the whole image were read.
  void finish();

 private:
  struct Codec;
  std::unique_ptr<Codec> codec_;
  JpegHeader header_;
};

struct CheckedJpeg : JpegHeader {
  std::string warning;  // what is doubtful about a file that can be decoded, or empty
};

// Throws Error for exactly the files for which decode_jpeg() does, damaged entropy-coded data included. It decodes all
// of the data, but computes only one pixel per block.
CheckedJpeg check_jpeg(std::span<const std::uint8_t> bytes);

}  // namespace ringtrain
