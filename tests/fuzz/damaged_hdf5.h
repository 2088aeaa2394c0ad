// HDF5 files with wrong contents. libhdf5 is not instrumented, so whole files are a poor input for a fuzzer. These
// functions start from a good file, and the input says what is changed in it.
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

// Writes the file `name` in the folder of inputs and returns its path. If the input begins as HDF5 does, it is written
// as it is. Otherwise the file is a changed copy of the file that `make` writes to the path that it is given. (It is
// made once and kept.)
//
// A change is a byte followed by its arguments. Arguments give objects and attributes by their number in the good
// file's order. A byte of 240 or more changes one value of a data set. Otherwise the byte modulo 6 says what happens:
//   0: an attribute becomes one or more       3: an object or attribute is removed
//      numbers of some type                   4: a byte of the file changes
//   1: an attribute becomes a string          5: the file is cut off
//   2: a data set gets another type, shape
//      and layout, without values
// After 8 changes, or after a change of kind 4 or 5, at most four more changes follow. They are of kind 5 if their byte
// modulo 12 is 5, and of kind 4 otherwise.
//
// If `recompute` is given, it is called after a value has changed. It writes the checksums of the file's data sets
// again, so that code after the checksums sees the changed value.
using Recompute = void (*)(hid_t file);
std::string damaged_file(const std::string& name, std::string_view input,
                         const std::function<void(const std::string& path)>& make, Recompute recompute = nullptr);

// Returns all bytes of an 8-bit data set. Returns no bytes if the data set is missing, has another type, or is larger
// than 64 KiB.
std::vector<std::uint8_t> bytes_of(hid_t file, const char* name);

// Writes the checksum of each block to the data set "crc32c". Does nothing if that data set no longer has one element
// for each block. A block goes from the end of the block before it to its own end in `ends`.
void write_checksums(hid_t file, std::span<const std::uint8_t> bytes, const std::vector<std::uint64_t>& ends);

}  // namespace ringtrain::fuzz
