// Finds out which axis of an array of images is which.
#pragma once

#include <cstdint>
#include <string>

#include "data/hdf5.h"
#include "data_prep/images/array_origin.h"

namespace ringtrain {

inline constexpr const char* expected_images =
    "expected u8 pixels (N, H, W, C), (N, C, H, W) or (N, H, W), or (N) encoded images of variable length";

std::string text_of(const h5::Shape& shape);  // "(640, 8, 8, 3)"

// Returns a letter for each axis of an array of pixels, which has three or four: "NHWC", "NCWH", "NHW". `labels` is the
// number of labels, `asked` the layout that the user has typed, or "". `found` begins the messages. Throws Error if no
// layout fits or several do. The number of images may still differ from that of the labels.
std::string layout_of(const h5::Shape& shape, const ArrayOrigin& origin, std::int64_t labels, const std::string& asked,
                      const std::string& found);

}  // namespace ringtrain
