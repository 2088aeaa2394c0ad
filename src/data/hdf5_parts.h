// What hdf5_storage.cpp and hdf5_virtual.cpp share. Other files must not include this.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "data/hdf5.h"

namespace ringtrain::h5 {

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
