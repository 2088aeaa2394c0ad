// The versions of the libraries that this program runs with.
#pragma once

#include <map>
#include <string>

namespace ringtrain {

// Returns each library with its version: "MPI", "HDF5" and "oneDNN" as found at run time, "yaml-cpp" and
// "nlohmann-json" as found at build time.
std::map<std::string, std::string> library_versions();

std::string version_text();  // for `ringtrain --version`: the program, its build and its libraries

}  // namespace ringtrain
