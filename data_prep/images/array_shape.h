// Finds out what an array of images is: the program that wrote it, and which axis is which.
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

// Finds out which axis of an array of images is which.

inline constexpr const char* expected_images =
    "expected u8 pixels (N, H, W, C), (N, C, H, W) or (N, H, W), or (N) encoded images of variable length";

std::string text_of(const h5::Shape& shape);  // "(640, 8, 8, 3)"

// An order of the axes that somebody has given.
struct AskedLayout {
  std::string letters;      // any order of NHWC, or of NHW for grey pictures; "": nobody has
  bool is_in_file = false;  // the file has labels of its axes; otherwise the user typed --layout

  std::string asker() const { return is_in_file ? "the labels of its axes," : "--layout"; }
};

// Reads the labels that a file gives to the axes of a data set (h5py's dims[0].label): N or B, H, W and C, or such
// words as batch, height, width and channel. Throws Error if there are labels that name no order of the axes.
AskedLayout layout_in_file(const h5::File& file, const std::string& dataset);

// Returns a letter for each axis of an array of pixels, which has three or four: "NHWC", "NCWH", "NHW". `labels` is the
// number of labels. `found` begins the messages. Throws Error if no layout fits or several do. The number of images may
// still differ from that of the labels.
std::string layout_of(const h5::Shape& shape, const ArrayOrigin& origin, std::int64_t labels, const AskedLayout& asked,
                      const std::string& found);

}  // namespace ringtrain
