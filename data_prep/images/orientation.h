// Reads the EXIF orientation of an image, and turns the image as it says.
#pragma once

#include <cstdint>
#include <span>

#include "data/jpeg.h"

namespace ringtrain {

// Return 1 to 8 (EXIF 2.32, tag 0x112): 1 is upright, 6 must be turned clockwise to be upright. They return 1 for a
// file without an orientation, or with a damaged one.
int jpeg_orientation(std::span<const std::uint8_t> bytes);
int png_orientation(std::span<const std::uint8_t> bytes);

// Does what Pillow's ImageOps.exif_transpose does. 5 to 8 exchange height and width.
Image turned_upright(const Image& image, int orientation);

}  // namespace ringtrain
