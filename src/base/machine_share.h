// This machine: its name, and how much of it this process may use. A batch system or a container limits memory, CPU
// time and the number of processes with control groups (cgroups, version 1 or 2).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace ringtrain {

// Returns the name of this machine in its network: "node17". It has at most 254 bytes.
std::string host_name();

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

// Says how many CPUs this process may use. Its affinity mask names CPUs. A control group may also limit the CPU time:
// with a quota of 1.5 CPUs, a process whose threads run on 4 CPUs is stopped for more than half of the time.
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
double quota_share();  // of this process alone

// Convert between quotas and the text "0:29:7 1.5 0:29:9 4".
std::string to_text(const std::vector<CpuQuota>& quotas);
std::vector<CpuQuota> parse_quotas(const std::string& text);

// Returns how many of `cpus` CPUs a quota lets run all the time: at least 1. A fraction of a CPU is no thread more,
// because the threads of a loop wait for the slowest one.
int whole_cpus(int cpus, double quota);

// Returns the CPUs on which the calling thread may run, in ascending order. There is always at least one.
std::vector<int> own_cpus();

// Returns the number of CPUs that this process may use if it shares them with no other process: those of its affinity
// mask, or fewer if a quota allows fewer. At least 1.
int usable_cpus();

// Reads how much memory the machine has, and how much of it this process may use.
struct HostMemory {
  std::int64_t total = 0, available = 0;  // bytes; memory that the kernel can reclaim counts as available
  bool is_limited = false;                // whether `total` is the limit of a control group, and not the whole machine
};
// Returns nothing if the kernel does not say it. A batch system may limit the memory of a job with a control group
// (cgroup, version 1 or 2). The smallest limit of the process's groups then counts. Files are read below the folder
// `root`.
std::optional<HostMemory> host_memory(const std::string& root = "");

}  // namespace ringtrain
