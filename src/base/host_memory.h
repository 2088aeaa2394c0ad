// Reads how much memory the machine has, and how much of it this process may use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ringtrain {

struct HostMemory {
  std::int64_t total = 0, available = 0;  // bytes; memory that the kernel can reclaim counts as available
  bool is_limited = false;                // whether `total` is the limit of a control group, and not the whole machine
};
// Returns nothing if the kernel does not say it. A batch system may limit the memory of a job with a control group
// (cgroup, version 1 or 2). The smallest limit of the process's groups then counts. Files are read below the folder
// `root`.
std::optional<HostMemory> host_memory(const std::string& root = "");

}  // namespace ringtrain
