// Finds damaged JPEGs without computing all of their pixels.
#pragma once

#include <cstdint>
#include <span>

#include "data/jpeg.h"

namespace ringtrain {

// Throws Error for exactly the files for which decode_jpeg() does, damaged entropy-coded data included. It decodes all
// of the data, but computes only one pixel per block.
JpegHeader check_jpeg(std::span<const std::uint8_t> bytes);

}  // namespace ringtrain
