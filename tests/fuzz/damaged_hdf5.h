// HDF5 files with wrong contents. libhdf5 is not instrumented, so whole files are a poor input for a fuzzer: it starts
// from a good file, and the input says what is changed in it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/hdf5.h"
#include "tests/fuzz/target.h"

namespace ringtrain::fuzz {

// Writes `name` in the folder of inputs: the input itself where it begins as HDF5 does, else what `make` writes to the
// path that it is given (made once and kept), changed as the input says. Returns its path.
//
// A change is a byte and what belongs to it; names are numbers of objects and attributes in the good file's
// order. 240 and more: one value of a data set; otherwise the byte modulo 6. 0: an attribute becomes an integer; 1: a
// string; 2: a data set gets another type, shape and layout, without values; 3: an object or attribute goes; 4: a byte
// of the file changes; 5: the file is cut off.
//
// `recompute`, if any, is called after a value has changed: it writes the checksums of the file's data sets anew, so
// that what is behind them sees the value.
using Recompute = void (*)(hid_t file);
std::string damaged_file(const std::string& name, std::string_view input,
                         const std::function<void(const std::string& path)>& make, Recompute recompute = nullptr);

// All bytes of an 8-bit data set; empty where it is not there, is of another type, or is larger than 64 KiB.
std::vector<std::uint8_t> bytes_of(hid_t file, const char* name);

// Writes the checksums, one for each block of `ends` (the block before it ends where it begins), over the data set
// "crc32c", where that still has as many of them.
void write_checksums(hid_t file, std::span<const std::uint8_t> bytes, const std::vector<std::uint64_t>& ends);

}  // namespace ringtrain::fuzz
