// Reads the labels of imported arrays.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/hdf5.h"

namespace ringtrain {

// Whole numbers of any type: integers, floating-point numbers as MATLAB stores them, bool or enum. The shape is (N),
// (N, 1) or (1, N).
class ArrayLabels {
 public:
  // Throws Error for other types and shapes.
  ArrayLabels(const std::string& path, const std::string& dataset);

  std::int64_t count() const { return count_; }
  // Reads the labels of rows [first, end). Throws Error if one is not in the file, is no whole number, or is 2^63 or
  // more.
  std::vector<std::int64_t> read(std::int64_t first, std::int64_t end) const;

 private:
  h5::File file_;
  std::string name_, type_;
  h5::Shape shape_;
  int axis_ = 0;  // the axis that counts the labels
  std::int64_t count_ = 0;
};

}  // namespace ringtrain
