// Imports other people's HDF5 arrays of images into a data set of kind "image".
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include "data_prep/images/convert.h"

namespace ringtrain {

struct ImportRows {
  std::int64_t first = 0, end = 0;
};

// An empty `encoding` means raw for pixels and jpeg for encoded images. Without a class list, each class is named by
// its label.
struct ImportOptions : ImageOptions {
  std::string input;
  std::string images, labels;                       // names of the HDF5 data sets
  std::string layout;                               // "NHWC", "HWCN", ...; "": from the shape
  std::int64_t first_label = 0;                     // is subtracted from every label; 0 or more
  std::optional<ImportRows> rows, validation_rows;  // unset: all, none
};

// Takes pixels u8 with C = 1 or 3 channels, or variable-length u8 that holds whole JPEG or PNG files (Fuel's
// encoded_images). Labels are whole numbers (N), (N, 1) or (1, N). All ranks must call it. Call it before anything else
// that reads HDF5 (see expect_no_writer()).
ImagesReport import_arrays(const ImportOptions& options, const Ranks& ranks, std::ostream& log);

}  // namespace ringtrain
