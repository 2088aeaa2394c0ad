// The versions of the libraries that this program runs with.
#pragma once

#include <map>
#include <string>

namespace ringtrain {

// Returns each library with its version, as found at run time: "MPI", "HDF5", "oneDNN", "yaml-cpp", "nlohmann-json".
std::map<std::string, std::string> library_versions();

std::string version_text();  // for `ringtrain --version`: the program, its build and its libraries

}  // namespace ringtrain
