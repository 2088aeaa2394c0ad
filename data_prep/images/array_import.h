// Other people's HDF5 arrays of images into a data set of kind "image".
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include "data_prep/images/convert_listing.h"

namespace ringtrain {

struct RowRange {
  std::int64_t first = 0, end = 0;
};

// `encoding`, when empty, is raw for pixels and jpeg for encoded images.
struct ImportOptions : ImageOptions {
  std::string input;
  std::string images, labels;                     // data sets
  std::string layout;                             // "NHWC", "NCHW"; "": from the shape
  std::string class_list;                         // file; "": labels are their own names
  std::string split;                              // "": train
  std::optional<double> validation;               // share of each class held out
  std::optional<RowRange> rows, validation_rows;  // unset: all, none
};

// Pixels u8 (N, H, W), (N, H, W, C) or (N, C, H, W) with C of 1 or 3; or variable-length u8, whole JPEG or PNG files
// (Fuel's encoded_images). Labels: integers (N) or (N, 1). All ranks call it.
ImagesReport import_arrays(const ImportOptions& options, const Ranks& ranks, std::ostream& log);

}  // namespace ringtrain
