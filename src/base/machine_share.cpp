#include "base/machine_share.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/cat.h"

namespace ringtrain {
namespace {

struct Mount {
  std::filesystem::path root, folder;  // the group `root` is seen at the folder
};

bool is_in_list(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

// Returns where version 1's hierarchy of the controller, or version 2's only hierarchy, is mounted. A line is
// "36 25 0:32 ROOT FOLDER OPTIONS ... - TYPE SOURCE OPTIONS".
std::optional<Mount> mount_of(const std::string& root, int version, const std::string& controller) {
  std::ifstream mounts(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line), after(line.substr(dash + 3));
    std::string skipped, group, folder, type, source, options;
    before >> skipped >> skipped >> skipped >> group >> folder;
    after >> type >> source >> options;
    if (version == 2 ? type == "cgroup2" : type == "cgroup" && is_in_list(options, controller))
      return Mount{group, folder};
  }
  return std::nullopt;
}

// A container may see only a part of the hierarchy, whose top is the mount's root.
void add_levels(const std::string& root, const Mount& mount, int version, const std::filesystem::path& group,
                std::vector<ControlGroup>& found) {
  std::filesystem::path below = group.lexically_relative(mount.root);
  if (below.empty() || *below.begin() == "..") below = ".";
  for (;; below = below.parent_path()) {
    const bool is_top = below.empty() || below == ".";
    const std::filesystem::path top = std::filesystem::path(root + "/") / mount.folder.relative_path();
    found.push_back({is_top ? top : top / below, version});
    if (is_top) return;
  }
}

}  // namespace

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::vector<ControlGroup> control_groups(const std::string& controller, const std::string& root) {
  std::vector<ControlGroup> found;
  // A line is "hierarchy:controllers:group". In version 2 there is one hierarchy, and its controllers are not listed.
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t controllers = line.find(':'), group = line.find(':', controllers + 1);
    if (controllers == std::string::npos || group == std::string::npos) continue;
    const std::string names = line.substr(controllers + 1, group - controllers - 1);
    if (!names.empty() && !is_in_list(names, controller)) continue;
    const int version = names.empty() ? 2 : 1;
    if (const auto mount = mount_of(root, version, controller))
      add_levels(root, *mount, version, line.substr(group + 1), found);
  }
  return found;
}

std::optional<std::int64_t> number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

namespace {

constexpr double no_quota = std::numeric_limits<double>::infinity();

// Returns the CPUs that a group allows. Version 1 has -1 without a quota, and version 2 the word "max".
double quota_of(const ControlGroup& group) {
  std::int64_t quota = 0, period = 0;
  if (group.version == 1) {
    quota = number_in(group.folder / "cpu.cfs_quota_us").value_or(-1);
    period = number_in(group.folder / "cpu.cfs_period_us").value_or(0);
  } else {
    std::ifstream file(group.folder / "cpu.max");
    if (!(file >> quota >> period)) return no_quota;
  }
  return quota > 0 && period > 0 ? static_cast<double>(quota) / static_cast<double>(period) : no_quota;
}

}  // namespace

std::vector<CpuQuota> cpu_quotas(const std::string& root) {
  std::vector<CpuQuota> quotas;
  for (const ControlGroup& group : control_groups("cpu", root)) {
    const double cpus = quota_of(group);
    if (cpus == no_quota) continue;
    // Two containers may give different groups the same path. The folder's number in its file system tells them apart.
    struct stat status {};
    if (::stat(group.folder.c_str(), &status) != 0) continue;
    quotas.push_back({cat(status.st_dev, ":", status.st_ino), cpus});
  }
  return quotas;
}

double quota_share(const std::vector<std::vector<CpuQuota>>& quotas_of_processes, std::size_t me) {
  double share = no_quota;
  for (const CpuQuota& own : quotas_of_processes[me]) {
    const auto sharing = std::ranges::count_if(quotas_of_processes, [&](const std::vector<CpuQuota>& quotas) {
      return std::ranges::find(quotas, own.group, &CpuQuota::group) != quotas.end();
    });
    share = std::min(share, own.cpus / static_cast<double>(sharing));
  }
  return share;
}

double quota_share() {
  return quota_share({cpu_quotas()}, 0);
}

std::string to_text(const std::vector<CpuQuota>& quotas) {
  return joined(quotas, " ", [](const CpuQuota& quota) { return cat(quota.group, " ", quota.cpus); });
}

std::vector<CpuQuota> parse_quotas(const std::string& text) {
  std::vector<CpuQuota> quotas;
  std::istringstream in(text);
  for (CpuQuota quota; in >> quota.group >> quota.cpus;) quotas.push_back(quota);
  return quotas;
}

int whole_cpus(int cpus, double quota) {
  return std::max(1, quota < cpus ? static_cast<int>(quota + 1e-6) : cpus);
}

std::vector<int> own_cpus() {
  constexpr int most = 8192;  // more than cpu_set_t holds
  std::vector<std::uint8_t> mask(most / 8, 0);
  if (sched_getaffinity(0, mask.size(), reinterpret_cast<cpu_set_t*>(mask.data())) != 0) mask[0] = 1;
  std::vector<int> cpus;
  for (int cpu = 0; cpu < most; ++cpu)
    if ((mask[static_cast<std::size_t>(cpu / 8)] >> (cpu % 8)) & 1) cpus.push_back(cpu);
  return cpus;
}

int usable_cpus() {
  return whole_cpus(static_cast<int>(std::ssize(own_cpus())), quota_share());
}

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
