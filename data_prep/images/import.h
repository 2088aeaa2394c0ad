// Imports other people's arrays of images into a data set of kind "image": those of HDF5 files, and IDX files.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include "data_prep/images/convert.h"

namespace ringtrain {

// The arrays of an HDF5 file.

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

// IDX files, the form of MNIST and Fashion-MNIST (http://yann.lecun.com/exdb/mnist).

// Without a class list, each class is named by its label.
struct IdxOptions : ImageOptions {
  std::string images, labels;    // paths; each file may be compressed by gzip
  std::int64_t first_label = 0;  // is subtracted from every label; 0 or more
};

// Takes pictures u8 (N, H, W) or (N, H, W, C) with C = 1 or 3 channels, and labels (N) of any integer type from 0. All
// ranks must call it. Throws Error that names the file if the magic number, the type, the number of axes or the size is
// wrong, for the reasons of GzipFile, or if there are not as many labels as pictures.
ImagesReport import_idx(const IdxOptions& options, const Ranks& ranks, std::ostream& log);

}  // namespace ringtrain
