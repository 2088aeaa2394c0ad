#include "cluster/binding.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "base/error.h"
#include "base/machine_share.h"

namespace ringtrain {
namespace {

using Lines = std::vector<std::string>;

// A rank's binding, with CPUs as text. Every CPU is a core of its own.
RankBinding bound(int rank, const std::string& host, const std::string& cpus, const std::string& gpus = "") {
  return {rank, host, parse_cpu_list(cpus), parse_cpu_list(cpus), gpus};
}

TEST(CpuList, WritingAndReadingAreInverse) {
  for (const char* text : {"0", "0-3", "0-3,8", "1,3,5-7,100-101", ""}) EXPECT_EQ(cpu_list(parse_cpu_list(text)), text);
  EXPECT_EQ(parse_cpu_list("0-2,8"), (std::vector<int>{0, 1, 2, 8}));
}

// Binds the calling thread to CPUs while it exists.
class BoundTo {
 public:
  explicit BoundTo(const std::vector<int>& cpus) : before_(own_cpus()) { bind(cpus); }
  ~BoundTo() { bind(before_); }

 private:
  static void bind(const std::vector<int>& cpus) {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    for (const int cpu : cpus) CPU_SET(static_cast<std::size_t>(cpu), &mask);
    EXPECT_EQ(sched_setaffinity(0, sizeof mask, &mask), 0);
  }
  std::vector<int> before_;
};

TEST(OwnCpus, AreThoseThatTheThreadIsBoundTo) {
  const std::vector<int> all = own_cpus();
  ASSERT_FALSE(all.empty());
  for (const int cpu : {all.front(), all.back()}) {
    const BoundTo one({cpu});
    EXPECT_EQ(own_cpus(), std::vector<int>{cpu});
  }
  EXPECT_EQ(own_cpus(), all);
}

TEST(OwnCpus, HardwareThreadsOfOneCoreAreOneCore) {
  const std::vector<int> all = own_cpus(), cores = cores_of(all);
  std::set<std::string> siblings;  // the kernel's list is the same for all hardware threads of a core
  for (const int cpu : all) {
    std::ifstream file(cat("/sys/devices/system/cpu/cpu", cpu, "/topology/thread_siblings_list"));
    std::string list = std::to_string(cpu);
    std::getline(file, list);
    siblings.insert(list);
  }
  EXPECT_EQ(cores.size(), siblings.size());
  EXPECT_TRUE(std::ranges::is_sorted(cores));
}

TEST(ShareOfCpus, ACpuOfSeveralRanksIsDividedAmongThem) {
  const std::vector<std::vector<int>> ranks = {{0, 1, 2, 3}, {2, 3}, {7}};
  EXPECT_DOUBLE_EQ(share_of_cpus(ranks, 0), 3);
  EXPECT_DOUBLE_EQ(share_of_cpus(ranks, 1), 1);
  EXPECT_DOUBLE_EQ(share_of_cpus(ranks, 2), 1);
}

TEST(ShareOfCpus, RanksThatShareAMachineHaveWholeCoresWhileThereAreEnough) {
  EXPECT_EQ(cpus_of_each_rank(2, 2, 1), 2);
  EXPECT_EQ(cpus_of_each_rank(2, 2, 2), 1);
  EXPECT_EQ(cpus_of_each_rank(2, 2, 256), 1);
  EXPECT_EQ(cpus_of_each_rank(64, 64, 8), 8);
  EXPECT_EQ(cpus_of_each_rank(64, 64, 7), 9);
  EXPECT_EQ(cpus_of_each_rank(64, 32, 3), 20);  // 10 cores of 2 hardware threads
  EXPECT_EQ(cpus_of_each_rank(64, 32, 33), 1);  // more ranks than cores: not bound
  EXPECT_EQ(cpus_of_each_rank(1, 1, 1), 1);
}

TEST(Bindings, NodesThatLookAlikeShareALine) {
  EXPECT_EQ(describe_bindings({bound(0, "node1", "0-3", "0"), bound(1, "node1", "4-7", "1"),
                               bound(2, "node2", "0-3", "0"), bound(3, "node2", "4-7", "1"), bound(4, "node3", "0-7")}),
            (Lines{"node1, node2: 2 ranks, CPUs 0-3 | 4-7, GPUs 0 | 1", "node3: 1 rank, CPUs 0-7"}));
}

TEST(Bindings, UnboundRanksAreSaidToHaveAllTheSame) {
  EXPECT_EQ(describe_bindings({bound(0, "a", "0-7", "0,1"), bound(1, "a", "0-7", "0,1")}),
            Lines{"a: 2 ranks, CPUs 0-7 for all, GPUs 0,1 for all"});
}

TEST(Bindings, ARankWithoutGpuIsSeen) {
  EXPECT_EQ(describe_bindings({bound(0, "a", "0", "0"), bound(1, "a", "1")}),
            Lines{"a: 2 ranks, CPUs 0 | 1, GPUs 0 | none"});
}

TEST(Bindings, OfThousandsOfRanksAreAFewWords) {
  std::vector<RankBinding> ranks;
  for (int r = 0; r < 4096; ++r) ranks.push_back(bound(r, "node" + std::to_string(r / 64), std::to_string(r % 64)));
  const Lines lines = describe_bindings(ranks);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_LT(lines[0].size(), 160u) << lines[0];
  EXPECT_NE(lines[0].find("node0, node1, node2, node3, ... (64): 64 ranks"), std::string::npos) << lines[0];
}

TEST(SharedCores, BoundRanksAndUnboundOnesWithCoresEnoughAreInNobodysWay) {
  EXPECT_EQ(shared_cores({bound(0, "a", "0-3"), bound(1, "a", "4-7")}), Lines{});
  EXPECT_EQ(shared_cores({bound(0, "a", "0-7"), bound(1, "a", "0-7")}), Lines{});
  // Each of two sockets has two ranks.
  EXPECT_EQ(shared_cores({bound(0, "a", "0-3"), bound(1, "a", "0-3"), bound(2, "a", "4-7"), bound(3, "a", "4-7")}),
            Lines{});
}

TEST(SharedCores, TheSameCoreOnTwoNodesIsNotShared) {
  EXPECT_EQ(shared_cores({bound(0, "a", "0"), bound(1, "b", "0")}), Lines{});
}

TEST(SharedCores, RanksOnOneCoreAreNamedWithTheirHost) {
  EXPECT_EQ(shared_cores({bound(0, "a", "0"), bound(1, "a", "1"), bound(2, "b", "0"), bound(3, "b", "0")}),
            Lines{"ranks 2, 3 on b share 1 core (CPUs 0 for all)"});
}

TEST(SharedCores, MasksThatOverlapInPartAreNamed) {
  EXPECT_EQ(shared_cores({bound(0, "a", "0-3"), bound(1, "a", "6-7"), bound(2, "a", "2-5")}),
            Lines{"ranks 0, 2 on a share 6 cores (CPUs 0-3 | 2-5)"});
}

TEST(SharedCores, HardwareThreadsOfOneCoreAreOneCore) {
  EXPECT_EQ(shared_cores({{0, "a", {0}, {0}, ""}, {1, "a", {64}, {0}, ""}}),
            Lines{"ranks 0, 1 on a share 1 core (CPUs 0 | 64)"});
}

TEST(SharedCores, MoreUnboundRanksThanCoresAreNamedAll) {
  EXPECT_EQ(shared_cores({bound(0, "a", "0-1"), bound(1, "a", "0-1"), bound(2, "a", "0-1")}),
            Lines{"ranks 0, 1, 2 on a share 2 cores (CPUs 0-1 for all)"});
}

}  // namespace
}  // namespace ringtrain
