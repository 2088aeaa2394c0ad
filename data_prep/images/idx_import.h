// Converts IDX files, the form of MNIST and Fashion-MNIST (http://yann.lecun.com/exdb/mnist), into a data set of kind
// "image".
#pragma once

#include <iosfwd>
#include <string>

#include "data_prep/images/convert.h"

namespace ringtrain {

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
