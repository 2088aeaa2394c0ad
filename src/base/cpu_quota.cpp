#include "base/cpu_quota.h"

#include <sched.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#include "base/cat.h"
#include "base/control_groups.h"

namespace ringtrain {
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

std::string to_text(const std::vector<CpuQuota>& quotas) {
  std::string text;
  for (const CpuQuota& quota : quotas) text += cat(text.empty() ? "" : " ", quota.group, " ", quota.cpus);
  return text;
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

int usable_cpus() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const int cpus = sched_getaffinity(0, sizeof mask, &mask) == 0
                       ? CPU_COUNT(&mask)
                       : static_cast<int>(std::thread::hardware_concurrency());  // more CPUs than fit into cpu_set_t
  return whole_cpus(std::max(1, cpus), quota_share({cpu_quotas()}, 0));
}

}  // namespace ringtrain
