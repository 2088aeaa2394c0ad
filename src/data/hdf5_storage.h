// Finds the values of a data set that are not there. HDF5 reads them as zeros, without an error: chunks that were never
// written, parts of virtual data sets whose file is missing, and the end of external files that are too short.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "data/hdf5.h"

namespace ringtrain::h5 {

// Rows [first, end) of a data set, counted along one axis of its shape. The default is all rows.
struct Rows {
  std::int64_t first = 0, end = std::numeric_limits<std::int64_t>::max();
  int axis = 0;
};

// Throws Error if a value of these rows is not stored, or if it was stored with a filter that is not installed here.
// Follows links, virtual data sets and external files. If the file's writer has set a fill value, it may stand for
// parts of a row that were never written, but not for a whole row. Returns the number of rows with such parts.
std::int64_t expect_stored(const File& file, const std::string& dataset, const Rows& rows = {});

// Throws Error if the data set claims to hold more bytes than its storage can, which damaged files do. The data set
// must be stored. Nothing as large as the claim may be allocated before.
void expect_plausible_size(const File& file, const std::string& dataset);

}  // namespace ringtrain::h5
