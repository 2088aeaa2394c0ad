// Says what to do with arrays that are no pixels or labels yet: statements of numpy, h5py and MATLAB.
#pragma once

#include <string>

#include "data/hdf5.h"
#include "data_prep/images/array_shape.h"

namespace ringtrain {

// Returns an advice for MATLAB's users: a statement that makes another array, such as "Y = full(Y)".
std::string in_matlab(const std::string& statement);

// Returns a data set's name as MATLAB writes it: "imdb.images.data" for imdb/images/data.
std::string variable_name(const std::string& dataset);

// Returns what turns values from `least` to `most` into pixels from 0 to 255. `type` is the name that File::type()
// gives the values' type, `x` the name of their array. Values of more than 8 bits are divided by the largest value of
// their number of bits, which is the same for all splits.
std::string advice_on_range(const std::string& type, double least, double most, bool for_matlab, const std::string& x);

// Throws Error for pixels of another type than u8. It states the range of the first images, counted along `axis`, and
// says how to turn them into u8 pixels, or into encoded images of variable length.
[[noreturn]] void refuse_pixels(const h5::File& file, const std::string& dataset, int axis, const ArrayOrigin& origin);

// Throws Error for u8 pixels, or variable-length values, of a shape that is not read: rows of pixels or of padded JPEG
// files, batches, and (N, 1) values. `found` is the message up to the shape.
[[noreturn]] void refuse_shape(const h5::File& file, const std::string& dataset, const std::string& found);

// Returns what to do with a group that has one data set for each image, or "" for any other group.
std::string advice_on_group_of_images(const h5::File& file, const std::string& group);

// Returns how text labels become numbers. Texts that are numbers are converted, and names are numbered by one list.
std::string advice_on_text_labels(const h5::File& file, const std::string& dataset);
// The same for MATLAB. `names` is an expression for a cell array of the labels' names.
std::string matlab_advice_on_names(const std::string& variable, const std::string& names);
// Returns how a cell array of MATLAB becomes numbers.
std::string matlab_advice_on_cell(const h5::File& file, const std::string& dataset);

// Returns what to do with labels that have two long axes. `is_matlab` chooses the language.
std::string advice_on_label_rows(const h5::File& file, const std::string& dataset, bool is_matlab);

}  // namespace ringtrain
