// Finds out what an array of images is: the program that wrote it, the range of its values, and which axis is which.
#pragma once

#include <cstdint>
#include <string>

#include "data/hdf5.h"

namespace ringtrain {

// Finds out which program wrote an array. Many programs store arrays with reversed axes.
struct ArrayOrigin {
  std::string program;       // "MATLAB", "Octave", "R" or "Julia", whose arrays have reversed axes; "": unknown
  std::string matlab_class;  // "uint8", "logical", "char", "cell", ...; "": the array has no mark of MATLAB

  bool is_reversed() const { return !program.empty(); }
  bool is_matlab() const { return program == "MATLAB"; }
};

// Looks at the attributes of the data set and of the groups above it, and at the first bytes of its file. R's rhdf5
// marks whole numbers only. MATLAB's h5create and Julia's HDF5.jl leave no mark. Throws Error if the data set cannot be
// opened.
ArrayOrigin origin_of(const h5::File& file, const std::string& dataset);

// Returns an advice for MATLAB's users: a statement that makes another array, such as "Y = full(Y)".
std::string in_matlab(const std::string& statement);

// Returns the last part of a path in a file, which is the variable's name in MATLAB.
std::string variable_name(const std::string& dataset);

// Finds the range of an array's values, from which follows how they become pixels from 0 to 255.

// Throws Error for pixels of another type than u8. It states the range of the first images, counted along `axis`, and
// says how to turn such values into u8.
[[noreturn]] void refuse_pixels(const h5::File& file, const std::string& dataset, int axis, const ArrayOrigin& origin);

// Finds out which axis of an array of images is which.

inline constexpr const char* expected_images =
    "expected u8 pixels (N, H, W, C), (N, C, H, W) or (N, H, W), or (N) encoded images of variable length";

std::string text_of(const h5::Shape& shape);  // "(640, 8, 8, 3)"

// Returns a letter for each axis of an array of pixels, which has three or four: "NHWC", "NCWH", "NHW". `labels` is the
// number of labels, `asked` the layout that the user has typed, or "". `found` begins the messages. Throws Error if no
// layout fits or several do. The number of images may still differ from that of the labels.
std::string layout_of(const h5::Shape& shape, const ArrayOrigin& origin, std::int64_t labels, const std::string& asked,
                      const std::string& found);

}  // namespace ringtrain
