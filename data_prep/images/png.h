// Reads PNG files as RGB images, with libpng.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/jpeg.h"

namespace ringtrain {

bool is_png(std::span<const std::uint8_t> bytes);

// Returns whether the file has an alpha channel, or transparent colours of a palette.
bool png_has_alpha(std::span<const std::uint8_t> bytes);

// Returns 3 channels: palettes and grey are expanded, 16 bits become the upper 8, alpha is dropped (not blended), as in
// Pillow's convert("RGB"). Grey of 16 bits without alpha is the exception: Pillow 9 cuts its values at 255, which makes
// such pictures nearly white. Throws Error with libpng's reason if the file is cut off or damaged.
Image decode_png(std::span<const std::uint8_t> bytes);

}  // namespace ringtrain
