// Tests the reading of the machine's memory and of the limits of control groups, on files like the kernel's.
#include <gtest/gtest.h>

#include <fstream>

#include "base/machine_share.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

class HostMemoryFiles : public WithFolder {
 protected:
  void SetUp() override {
    WithFolder::SetUp();
    write("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 800 kB\n");
    write("proc/self/mountinfo",
          "32 31 0:29 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
          "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw\n");
  }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name)) << text;
  }
  void expect(std::int64_t total, std::int64_t available, bool is_limited) {
    const std::optional<HostMemory> memory = host_memory(folder_.string());
    ASSERT_TRUE(memory);
    EXPECT_EQ(memory->total, total);
    EXPECT_EQ(memory->available, available);
    EXPECT_EQ(memory->is_limited, is_limited);
  }
};

TEST_F(HostMemoryFiles, WithoutGroupsTheMachineCounts) {
  expect(1000 << 10, 800 << 10, false);
  write("proc/self/cgroup", "0::/job\n4:cpu:/job\n");
  expect(1000 << 10, 800 << 10, false);
  write("proc/meminfo", "MemTotal: 1000 kB\n");
  EXPECT_FALSE(host_memory(folder_.string()));
}

TEST_F(HostMemoryFiles, TheSmallestLimitOfVersion2Counts) {
  write("proc/self/cgroup", "0::/slurm/job_1/step_0\n");
  write("sys/fs/cgroup/slurm/job_1/step_0/memory.max", "max\n");
  write("sys/fs/cgroup/slurm/job_1/step_0/memory.current", "5000\n");
  expect(1000 << 10, 800 << 10, false);
  // The limit of the job holds for its step. Pages of files can be reclaimed.
  write("sys/fs/cgroup/slurm/job_1/memory.max", "300000\n");
  write("sys/fs/cgroup/slurm/job_1/memory.current", "100000\n");
  write("sys/fs/cgroup/slurm/job_1/memory.stat", "anon 40000\nactive_file 20000\ninactive_file 30000\n");
  expect(300000, 250000, true);
  // A group may have used all that it has.
  write("sys/fs/cgroup/slurm/memory.max", "200000\n");
  write("sys/fs/cgroup/slurm/memory.current", "200001\n");
  expect(200000, 0, true);
}

TEST_F(HostMemoryFiles, LimitsOfVersion1Count) {
  write("proc/self/cgroup", "9:name=systemd:/\n4:cpuset,memory:/slurm/uid_0/job_7\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "900000\n");
  expect(1000 << 10, 800 << 10, false);
  write("sys/fs/cgroup/memory/slurm/uid_0/job_7/memory.limit_in_bytes", "400000\n");
  write("sys/fs/cgroup/memory/slurm/uid_0/job_7/memory.usage_in_bytes", "390000\n");
  write("sys/fs/cgroup/memory/slurm/uid_0/job_7/memory.stat", "inactive_file 7\ntotal_inactive_file 90000\n");
  expect(400000, 100000, true);
}

}  // namespace
}  // namespace ringtrain
