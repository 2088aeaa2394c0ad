// Finds the control groups (cgroups, version 1 or 2) of this process, in which a batch system or a container limits
// memory, CPU time and the number of processes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace ringtrain {

struct ControlGroup {
  std::filesystem::path folder;  // has the files of the controller, if the controller is switched on
  int version = 2;               // 1 or 2: the files have different names
};

// Returns the process's group for a controller ("cpu", "memory", "pids"), and all groups that contain it, as far as the
// process sees them. A limit of any of them holds. Files are read below the folder `root`.
std::vector<ControlGroup> control_groups(const std::string& controller, const std::string& root = "");

// Returns the number at the start of a file. Returns nothing for a missing file, and for the word "max", which means
// that there is no limit.
std::optional<std::int64_t> number_in(const std::filesystem::path& path);

}  // namespace ringtrain
