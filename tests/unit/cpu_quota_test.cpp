// Tests the quotas of CPU time of control groups, on files like the kernel's.
#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "base/machine_share.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

class CpuQuotaFiles : public WithFolder {
 protected:
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name)) << text;
  }
  double share(int processes = 1) {
    const std::vector<std::vector<CpuQuota>> all(static_cast<std::size_t>(processes), cpu_quotas(folder_.string()));
    return quota_share(all, 0);
  }
};

TEST_F(CpuQuotaFiles, TheSmallestQuotaOfVersion2Counts) {
  write("proc/self/mountinfo", "41 31 0:38 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n");
  write("proc/self/cgroup", "0::/slurm/job_1/step_0\n");
  EXPECT_EQ(share(), std::numeric_limits<double>::infinity());
  write("sys/fs/cgroup/slurm/job_1/step_0/cpu.max", "max 100000\n");
  EXPECT_EQ(share(), std::numeric_limits<double>::infinity());
  write("sys/fs/cgroup/slurm/job_1/cpu.max", "150000 100000\n");
  EXPECT_EQ(share(), 1.5);
  write("sys/fs/cgroup/slurm/cpu.max", "20000 50000\n");
  EXPECT_EQ(share(), 0.4);
}

// A container sees its group as the top of the mount, under the path that the machine knows.
TEST_F(CpuQuotaFiles, QuotasOfVersion1CountInContainers) {
  write("proc/self/mountinfo",
        "32 31 0:29 /docker/a /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  write("proc/self/cgroup", "4:cpu,cpuacct:/docker/a/inner\n0::/\n");
  write("sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(share(), std::numeric_limits<double>::infinity());
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(share(), 3);
  EXPECT_EQ(share(2), 1.5);
}

TEST(CpuQuotas, RanksDivideTheQuotasThatTheyShare) {
  const std::vector<CpuQuota> job = {{"1:7", 4}}, task = {{"1:8", 1}, {"1:7", 4}};
  EXPECT_EQ(quota_share({job, job, task, {}}, 0), 4.0 / 3);
  EXPECT_EQ(quota_share({job, job, task, {}}, 2), 1);
  EXPECT_EQ(quota_share({job, {}}, 1), std::numeric_limits<double>::infinity());
  EXPECT_EQ(quota_share({parse_quotas(to_text(task))}, 0), 1);
}

TEST(CpuQuotas, ThreadsAreWholeCpus) {
  EXPECT_EQ(whole_cpus(8, 1.5), 1);
  EXPECT_EQ(whole_cpus(8, 0.5), 1);
  EXPECT_EQ(whole_cpus(8, 3), 3);
  EXPECT_EQ(whole_cpus(8, 100), 8);
  EXPECT_EQ(whole_cpus(8, std::numeric_limits<double>::infinity()), 8);
}

}  // namespace
}  // namespace ringtrain
