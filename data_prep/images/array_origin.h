// Finds out which program wrote an array. Many programs store arrays with reversed axes.
#pragma once

#include <string>

#include "data/hdf5.h"

namespace ringtrain {

struct ArrayOrigin {
  std::string program;       // "MATLAB", "Octave", "R" or "Julia", whose arrays have reversed axes; "": unknown
  std::string matlab_class;  // "uint8", "logical", "char", "cell", ...; "": the array has no mark of MATLAB

  bool is_reversed() const { return !program.empty(); }
  bool is_matlab() const { return program == "MATLAB"; }
};

// Looks at the attributes of the data set and of the groups above it, and at the first bytes of its file. R's rhdf5
// marks whole numbers only. MATLAB's h5create and Julia's HDF5.jl leave no mark. Throws Error if the data set cannot be
// opened.
ArrayOrigin origin_of(const h5::File& file, const std::string& dataset);

// Returns an advice for MATLAB's users: a statement that makes another array, such as "Y = full(Y)".
std::string in_matlab(const std::string& statement);

// Returns the last part of a path in a file, which is the variable's name in MATLAB.
std::string variable_name(const std::string& dataset);

}  // namespace ringtrain
