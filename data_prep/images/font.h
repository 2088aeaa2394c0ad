// A bitmap font of 5 x 7 pixels for the printable ASCII characters.
#pragma once

#include <string>

#include "data/jpeg.h"

namespace ringtrain {

inline constexpr std::int64_t character_width = 6, line_height = 9;  // including the gap to the next one

// Draws black characters with their upper left corner at (left, top). Parts outside the image are left out. Each
// character outside ASCII becomes '?'.
void draw_text(Image& image, std::int64_t left, std::int64_t top, const std::string& text);

}  // namespace ringtrain
