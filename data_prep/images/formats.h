// What the converters know of JPEG and PNG files in addition to data/jpeg.h: orientation, and the pixels of a PNG.
#pragma once

#include <cstdint>
#include <span>

#include "data/jpeg.h"

namespace ringtrain {

// Reads the EXIF orientation of an image, and turns the image as it says.

// Return 1 to 8 (EXIF 2.32, tag 0x112): 1 is upright, 6 must be turned clockwise to be upright. They return 1 for a
// file without an orientation, or with a damaged one.
int jpeg_orientation(std::span<const std::uint8_t> bytes);
int png_orientation(std::span<const std::uint8_t> bytes);

// Does what Pillow's ImageOps.exif_transpose does. 5 to 8 exchange height and width.
Image turned_upright(const Image& image, int orientation);

// Reads PNG files as RGB images, with libpng.
bool is_png(std::span<const std::uint8_t> bytes);

// Returns whether the header of a PNG file says 16 bits a channel.
bool png_has_16_bits(std::span<const std::uint8_t> bytes);

// Returns whether the file has an alpha channel, or transparent colours of a palette.
bool png_has_alpha(std::span<const std::uint8_t> bytes);

// Returns 3 channels: palettes and grey are expanded, 16 bits become the upper 8, alpha is dropped (not blended), as in
// Pillow's convert("RGB"). Grey of 16 bits without alpha is the exception: Pillow 9 cuts its values at 255, which makes
// such pictures nearly white. Throws Error with libpng's reason if the file is cut off or damaged.
Image decode_png(std::span<const std::uint8_t> bytes);

}  // namespace ringtrain
