// HDF5 files with wrong contents. libhdf5 is not instrumented, so whole files are a poor input for a fuzzer: it starts
// from a good file, and the input says what is changed in it.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "data/hdf5.h"
#include "tests/fuzz/target.h"

namespace ringtrain::fuzz {

// Writes `name` in the folder of inputs: the input itself where it begins as HDF5 does, else what `make` writes to the
// path that it is given (made once and kept), changed as the input says. Returns its path.
//
// A change is a byte, modulo 6, and what belongs to it; names are numbers of objects and attributes in the good file's
// order. 0: an attribute becomes an integer; 1: a string; 2: a data set gets another type, shape and layout, without
// values; 3: an object or attribute goes; 4: a byte of the file changes; 5: the file is cut off.
std::string damaged_file(const std::string& name, std::string_view input,
                         const std::function<void(const std::string& path)>& make);

}  // namespace ringtrain::fuzz
