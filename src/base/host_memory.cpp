#include "base/host_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace ringtrain {
namespace {

// The files of a control group with its memory. The two versions of control groups have different names.
struct GroupFiles {
  const char *folder, *limit, *usage, *before_statistic;  // the last one is in memory.stat
};
constexpr GroupFiles version_1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"};
constexpr GroupFiles version_2 = {"/sys/fs/cgroup", "memory.max", "memory.current", ""};

// Returns nothing for a missing file, and for the word "max", which means that there is no limit.
std::optional<std::int64_t> number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

// Returns the bytes of file pages, which the kernel can reclaim.
std::int64_t bytes_of_files(const std::filesystem::path& statistics, const std::string& before) {
  std::ifstream file(statistics);
  std::int64_t sum = 0, value = 0;
  for (std::string name; file >> name >> value;)
    if (name == before + "inactive_file" || name == before + "active_file") sum += value;
  return sum;
}

// Applies the limits of the group and of all groups that contain it.
void apply_limits(const std::string& root, const GroupFiles& files, std::filesystem::path group, HostMemory& memory) {
  for (;; group = group.parent_path()) {
    const std::filesystem::path folder = std::filesystem::path(root + files.folder) / group.relative_path();
    const std::optional<std::int64_t> limit = number_in(folder / files.limit), used = number_in(folder / files.usage);
    if (limit && used) {
      if (*limit < memory.total) {
        memory.total = *limit;
        memory.is_limited = true;
      }
      const std::int64_t reclaimable = bytes_of_files(folder / "memory.stat", files.before_statistic);
      const std::int64_t kept = std::max<std::int64_t>(*used - reclaimable, 0);  // the files change at different times
      memory.available = std::min(memory.available, std::max<std::int64_t>(*limit - kept, 0));
    }
    if (!group.has_relative_path()) return;
  }
}

}  // namespace

std::optional<HostMemory> host_memory(const std::string& root) {
  HostMemory memory;
  std::ifstream file(root + "/proc/meminfo");
  for (std::string name, rest; file >> name && std::getline(file, rest);) {
    if (name == "MemTotal:") memory.total = std::stoll(rest) << 10;
    if (name == "MemAvailable:") memory.available = std::stoll(rest) << 10;
  }
  if (memory.total == 0 || memory.available == 0) return std::nullopt;
  // A line is "hierarchy:controllers:group". In version 2 there is one hierarchy, and its controllers are not listed.
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t controllers = line.find(':'), group = line.find(':', controllers + 1);
    if (controllers == std::string::npos || group == std::string::npos) continue;
    const std::string names = "," + line.substr(controllers + 1, group - controllers - 1) + ",";
    if (names == ",,") apply_limits(root, version_2, line.substr(group + 1), memory);
    if (names.find(",memory,") != std::string::npos) apply_limits(root, version_1, line.substr(group + 1), memory);
  }
  return memory;
}

}  // namespace ringtrain
