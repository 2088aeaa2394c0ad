// Helpers of hdf5.cpp and hdf5_attributes.cpp. Other files must not include this.
#pragma once

#include <mutex>
#include <source_location>
#include <string>

#include "data/hdf5.h"

namespace ringtrain::h5 {

// Takes the lock, and switches off the printing of errors. A thread-safe HDF5 has such a switch for each thread.
class Guard {
 public:
  Guard();

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

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

std::string type_name(hid_t type);  // "u8", "i32", "f64", "string", ...

}  // namespace ringtrain::h5
