#include "base/host_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/control_groups.h"

namespace ringtrain {
namespace {

// The files of a control group with its memory. The two versions of control groups have different names.
struct GroupFiles {
  const char *limit, *usage, *before_statistic;  // the last one is in memory.stat
};
constexpr GroupFiles version_1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_"};
constexpr GroupFiles version_2 = {"memory.max", "memory.current", ""};

// Returns the bytes of file pages, which the kernel can reclaim.
std::int64_t bytes_of_files(const std::filesystem::path& statistics, const std::string& before) {
  std::ifstream file(statistics);
  std::int64_t sum = 0, value = 0;
  for (std::string name; file >> name >> value;)
    if (name == before + "inactive_file" || name == before + "active_file") sum += value;
  return sum;
}

void apply_limit(const ControlGroup& group, HostMemory& memory) {
  const GroupFiles& files = group.version == 1 ? version_1 : version_2;
  const std::optional<std::int64_t> limit = number_in(group.folder / files.limit),
                                    used = number_in(group.folder / files.usage);
  if (!limit || !used) return;
  if (*limit < memory.total) {
    memory.total = *limit;
    memory.is_limited = true;
  }
  const std::int64_t reclaimable = bytes_of_files(group.folder / "memory.stat", files.before_statistic);
  const std::int64_t kept = std::max<std::int64_t>(*used - reclaimable, 0);  // the files change at different times
  memory.available = std::min(memory.available, std::max<std::int64_t>(*limit - kept, 0));
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
  for (const ControlGroup& group : control_groups("memory", root)) apply_limit(group, memory);
  return memory;
}

}  // namespace ringtrain
