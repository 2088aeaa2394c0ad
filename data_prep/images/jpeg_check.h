// Finds damaged JPEGs without computing all of their pixels.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "data/jpeg.h"

namespace ringtrain {

struct CheckedJpeg : JpegHeader {
  std::string warning;  // what is doubtful about a file that can be decoded, or empty
};

// Throws Error for exactly the files for which decode_jpeg() does, damaged entropy-coded data included. It decodes all
// of the data, but computes only one pixel per block.
CheckedJpeg check_jpeg(std::span<const std::uint8_t> bytes);

}  // namespace ringtrain
