// Finding damaged JPEGs without making all of their pixels.
#pragma once

#include <cstdint>
#include <span>

#include "data/jpeg.h"

namespace ringtrain {

// Throws Error exactly when decode_jpeg does, for damage in the entropy-coded data too: all of it is decoded, but each
// block becomes one pixel.
JpegHeader check_jpeg(std::span<const std::uint8_t> bytes);

}  // namespace ringtrain
