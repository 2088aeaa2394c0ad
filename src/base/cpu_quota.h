// Says how many CPUs this process may use. Its affinity mask names CPUs. A control group may also limit the CPU time:
// with a quota of 1.5 CPUs, a process whose threads run on 4 CPUs is stopped for more than half of the time.
#pragma once

#include <string>
#include <vector>

namespace ringtrain {

struct CpuQuota {
  std::string group;  // the same text for all processes of this node that share the quota; has no space
  double cpus = 0;    // CPU seconds per second
};
// Returns the quotas of all control groups (version 1 or 2) that this process is in. Files are read below the folder
// `root`.
std::vector<CpuQuota> cpu_quotas(const std::string& root = "");

// Returns the CPUs that this process has for itself, if the processes of its node have these quotas and each quota is
// divided evenly among those that share it. Returns infinity without a quota.
double quota_share(const std::vector<std::vector<CpuQuota>>& quotas_of_processes, std::size_t me);

// Convert between quotas and the text "0:29:7 1.5 0:29:9 4".
std::string to_text(const std::vector<CpuQuota>& quotas);
std::vector<CpuQuota> parse_quotas(const std::string& text);

// Returns how many of `cpus` CPUs a quota lets run all the time: at least 1. A fraction of a CPU is no thread more,
// because the threads of a loop wait for the slowest one.
int whole_cpus(int cpus, double quota);

// Returns the number of CPUs that this process may use if it shares them with no other process: those of its affinity
// mask, or fewer if a quota allows fewer. At least 1.
int usable_cpus();

}  // namespace ringtrain
