// Finds the range of an array's values, from which follows how they become pixels from 0 to 255.
#pragma once

#include <cstdint>
#include <string>

#include "data/hdf5.h"
#include "data_prep/images/array_origin.h"

namespace ringtrain {

// Throws Error for pixels of another type than u8. It states the range of the first images, counted along `axis`, and
// says how to turn such values into u8.
[[noreturn]] void refuse_pixels(const h5::File& file, const std::string& dataset, int axis, const ArrayOrigin& origin);

}  // namespace ringtrain
