// Finds the files of the repository, wherever a test program is started.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace ringtrain {

// Returns the folder that RINGTRAIN_ROOT names. Without the variable, it is the working folder.
inline std::filesystem::path repository() {
  const char* root = std::getenv("RINGTRAIN_ROOT");
  return root != nullptr ? std::filesystem::path(root) : std::filesystem::current_path();
}

}  // namespace ringtrain
