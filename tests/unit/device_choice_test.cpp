#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "cluster/binding.h"
#include "tests/unit/with_environment.h"

namespace ringtrain {
namespace {

using Lists = std::vector<RankDevices>;

// The device that each rank of the node takes.
std::vector<int> choices(const Lists& ranks, bool may_share = false) {
  std::vector<int> result;
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r)
    result.push_back(choose_device(ranks, r, "node17", may_share));
  return result;
}

std::string error_of(const Lists& ranks, int node_rank) {
  try {
    choose_device(ranks, node_rank, "node17", false);
  } catch (const Error& e) {
    return std::string(e.what()) + " | " + e.hint();
  }
  return "no error";
}

TEST(DeviceChoice, RanksThatSeeAllDevicesTakeOneEachInOrder) {
  const std::vector<std::string> all = {"GPU-a", "GPU-b", "GPU-c", "GPU-d"};
  EXPECT_EQ(choices({{8, all}, {9, all}, {10, all}}), (std::vector<int>{0, 1, 2}));
}

TEST(DeviceChoice, RanksThatSeeOneDeviceEachTakeThat) {
  EXPECT_EQ(choices({{0, {"GPU-c"}}, {1, {"GPU-a"}}}), (std::vector<int>{0, 0}));
}

TEST(DeviceChoice, RanksWithListsOfTheirOwnNeverMeet) {
  EXPECT_EQ(choices({{0, {"GPU-a", "GPU-b"}}, {1, {"GPU-b", "GPU-a"}}, {2, {"GPU-a", "GPU-c"}}}),
            (std::vector<int>{0, 0, 1}));
}

TEST(DeviceChoice, MoreRanksThanDevicesIsAnErrorWithAdvice) {
  const WithEnvironment environment(Variables{{"CUDA_VISIBLE_DEVICES", "0,3"}});
  const std::vector<std::string> two = {"GPU-a", "GPU-b"};
  const std::string error = error_of({{4, two}, {5, two}, {6, two}}, 2);
  EXPECT_NE(error.find("3 ranks on node17, but 2 devices (CUDA_VISIBLE_DEVICES=0,3): rank 6"), std::string::npos)
      << error;
  EXPECT_NE(error.find("taken are GPU-a (rank 4), GPU-b (rank 5)"), std::string::npos) << error;
  EXPECT_NE(error.find("communication.library: mpi"), std::string::npos) << error;
  EXPECT_EQ(choose_device({{4, two}, {5, two}, {6, two}}, 1, "node17", false), 1);  // the other ranks go on
}

TEST(DeviceChoice, TwoRanksOnOneDeviceByAccidentAreNamed) {
  const std::string error = error_of({{0, {"GPU-a", "GPU-b"}}, {1, {"GPU-a"}}, {2, {"GPU-a"}}}, 2);
  EXPECT_NE(error.find("rank 1 on node17"), std::string::npos) << error;  // the first rank that finds no device
  EXPECT_NE(error.find("GPU-a (rank 0)"), std::string::npos) << error;
}

TEST(DeviceChoice, RanksThatSumThroughTheHostShareDevicesEvenly) {
  const std::vector<std::string> two = {"GPU-a", "GPU-b"};
  EXPECT_EQ(choices({{0, two}, {1, two}, {2, two}, {3, two}, {4, two}}, true), (std::vector<int>{0, 1, 0, 1, 0}));
}

TEST(DeviceChoice, NoDeviceIsAnErrorWithAdvice) {
  const std::string error = error_of({{3, {}}}, 0);
  EXPECT_NE(error.find("rank 3 on node17 sees no GPU"), std::string::npos) << error;
}

TEST(DeviceChoice, NcclSharesDevicesOnlyWhenItIsTold) {
  const WithEnvironment environment({}, {"NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_HOSTID"});
  EXPECT_FALSE(nccl_may_share_devices());
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "0", 1);
  EXPECT_FALSE(nccl_may_share_devices());
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  EXPECT_TRUE(nccl_may_share_devices());
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
  setenv("NCCL_HOSTID", "rank1", 1);
  EXPECT_TRUE(nccl_may_share_devices());
  unsetenv("NCCL_HOSTID");
}

}  // namespace
}  // namespace ringtrain
