// Opens the HDF5 file of other people's arrays. If an array is missing, the error says which ones there are.
#pragma once

#include <string>

#include "data/hdf5.h"

namespace ringtrain {

enum class ArrayUse { images, labels };

// Throws Error if another process has the file open for writing, so that only a part of it may be there. HDF5 locks
// such files, unless HDF5_USE_FILE_LOCKING is FALSE or the file system has no locks; nothing is found out then. Must be
// called before the first h5::Guard, which sets that variable.
void expect_no_writer(const std::string& path);

// Opens the file. Throws Error if it has no such data set, or if MATLAB has stored something else there than an array:
// nothing, a cell array, a sparse matrix or an object. `dataset` may be "", which is an error, too.
h5::File open_with_dataset(const std::string& path, const std::string& dataset, ArrayUse use);

}  // namespace ringtrain
