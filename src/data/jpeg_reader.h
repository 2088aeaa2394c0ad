// Decodes chosen rows and columns of one JPEG to RGB. Only jpeg.cpp and image_transform.cpp use it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "data/jpeg.h"

namespace ringtrain {

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

}  // namespace ringtrain
