// One JPEG being decoded: the rows and columns that are asked for, as RGB. Inside of jpeg.cpp and image_transform.cpp.
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

// Pixels are Pillow's convert("RGB"), bit for bit, whichever part is decoded: ISLOW, fancy upsampling (its context is
// decoded too), grey repeated, CMYK and YCCK (taken as inverted, as Adobe writes them) by Pillow's formula.
//
// Warnings of libjpeg about lost data (premature end, bad Huffman codes, missing restart markers) are errors. Those
// about oddities that leave the pixels whole (extraneous bytes before a marker, unknown Adobe transforms, odd scan
// parameters, bad ICC chunks) are not: Pillow reads such files, and photographs from the web have them.
class JpegReader {
 public:
  explicit JpegReader(std::span<const std::uint8_t> bytes);  // reads the header; `bytes` must live on
  ~JpegReader();
  JpegReader(const JpegReader&) = delete;
  const JpegHeader& header() const { return header_; }

  // Decodes no more than it must for `box`; rows are then read in order. Once only. `padding_bytes` are readable
  // behind the rows that read() gives.
  void start(const PixelBox& box, std::int64_t padding_bytes);
  // The next `count` (1 or 2) rows of the box, u8 [width, 3]; valid until the next call.
  struct Rows {
    const std::uint8_t *first, *second;  // second: nullptr when count is 1
  };
  Rows read(std::int64_t count);
  // After all rows of the whole image: that the file ends as it should.
  void finish();

 private:
  struct Codec;
  std::unique_ptr<Codec> codec_;
  JpegHeader header_;
};

}  // namespace ringtrain
