// Helpers of the files hdf5*.cpp. Other files must not include this.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <source_location>
#include <string>
#include <vector>

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

// Returns `count` strings of this type, which read(values) stores. Strings of fixed length are cut at the first zero
// byte. h5py writes strings of variable length.
std::vector<std::string> strings_of(hid_t type, std::size_t count, const std::function<void(void* values)>& read);

// A file of raw values that belongs to an HDF5 file.
struct ExternalFile {
  std::string path;
  std::uint64_t offset = 0, bytes = 0;  // the place of its values; without a limit, `bytes` is the largest number
};

// Returns the external file of this number, at the place where HDF5 looks for it.
ExternalFile external_file(hid_t dataset, hid_t creation, int number);

// What hdf5_storage.cpp and hdf5_virtual.cpp share. Other files must not include this.

// The values of a data set that somebody wants to read.
struct Part {
  const File& file;
  hid_t dataset;
  hid_t wanted;      // a data space with a selection of one value or more
  int axis;          // the axis of the rows
  std::string name;  // for messages: "a.h5: data set 'x'"
};

// Files that HDF5 must keep open at the same time to read a virtual data set.
using SourceFiles = std::set<std::string>;

std::vector<hsize_t> extents_of(hid_t space);

// The smallest block that holds a selection; `last` is inclusive.
struct Bounds {
  explicit Bounds(hid_t space);
  std::vector<hsize_t> first, last;
};

// Counts missing values for each row.
class MissingRows {
 public:
  explicit MissingRows(const Part& part);
  void add(const std::vector<hsize_t>& first, const std::vector<hsize_t>& last);  // a block; `last` is inclusive
  bool enough() const { return added_ > 100000; }  // a message needs no more, and a damaged file may claim any number
  // Throws Error with `why`, such as "was never written", if whole rows are missing, or parts of rows without a fill
  // value. Returns the number of rows of which parts are missing.
  std::int64_t judge(bool has_fill_value, const std::string& why) const;

 private:
  const Part& part_;
  std::int64_t rows_ = 1, values_of_a_row_ = 1;
  std::map<std::int64_t, std::int64_t> changes_;  // row: by how much more values are missing than in the row before it
  std::int64_t added_ = 0;
};

bool has_fill_value(hid_t creation);  // whether the file's writer has set one

// Both do what expect_stored() does, for one part of any data set and for one of a virtual data set. `depth` is the
// number of virtual data sets above this one.
std::int64_t check_part(const Part& part, int depth, SourceFiles& files);
std::int64_t check_sources(const Part& part, hid_t creation, int depth, SourceFiles& files);

}  // namespace ringtrain::h5
