// Helpers of the files hdf5*.cpp. Other files must not include this.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>

#include "data/hdf5.h"

namespace ringtrain::h5 {

// Returns HDF5's innermost reason for the last failure, and forgets it.
std::string innermost_description();

// Throws Error with path, what, and HDF5's innermost reason.
[[noreturn]] void fail(const std::string& path, const std::string& what,
                       std::source_location where = std::source_location::current());

// Returns the result of an HDF5 call; throws Error if it is negative.
template <class Result>
Result checked(Result result, const std::string& path, const std::string& what,
               std::source_location where = std::source_location::current()) {
  if (result < 0) fail(path, what, where);
  return result;
}

std::string type_name(hid_t type);  // "u8", "i32", "f64", "string", "bool", "enum", ...

std::string name_of_file(hid_t file);

// A file of raw values that belongs to an HDF5 file.
struct ExternalFile {
  std::string path;
  std::uint64_t offset = 0, bytes = 0;  // the place of its values; without a limit, `bytes` is the largest number
};

// Returns the external file of this number, at the place where HDF5 looks for it.
ExternalFile external_file(hid_t dataset, hid_t creation, int number);

}  // namespace ringtrain::h5
