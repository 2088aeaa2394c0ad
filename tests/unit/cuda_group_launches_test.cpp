// Tests fused operations that compute the statistics of one group. They need a launch for each group and are chosen
// where that costs less than it saves.
#include <gtest/gtest.h>

#include <map>

#include "backend/cuda/backend.h"
#include "backend/cuda/program/operation.h"
#include "backend/cuda/program/schedule.h"
#include "tests/emulation/host_device.h"
#include "tests/unit/images.h"

namespace ringtrain::cuda {
namespace {

const DeviceFacts h200 = {.name = "H200",
                          .uuid = {},
                          .compute_capability = 90,
                          .multiprocessors = 132,
                          .memory_bytes = std::int64_t{140} << 30,
                          .free_bytes = std::int64_t{140} << 30,
                          .cuda_version = {},
                          .cudnn_version = {}};

DnnOperation convolution(std::int64_t n, std::int64_t c, std::int64_t size, std::int64_t k, std::int64_t r) {
  return {.kind = DnnKind::convolution,
          .type = Type::bf16,
          .math = Math::half,
          .n = n,
          .c = c,
          .h = size,
          .w = size,
          .k = k,
          .r = r,
          .padding = r / 2};
}

TEST(CudaGroupLaunches, OneLaunchLosesNothing) {
  EXPECT_EQ(bytes_lost_to_groups(h200, convolution(256, 64, 56, 64, 1), 1), 0);
}

TEST(CudaGroupLaunches, LargeMapsLoseTheGapsBetweenLaunches) {
  // 32 samples of 56 x 56 fill the GPU many times. The cost is seven more launches of 3 us at 3.6 TB/s, which is less
  // than moving the map of 411 MB.
  EXPECT_NEAR(bytes_lost_to_groups(h200, convolution(32, 64, 56, 256, 1), 8), 7 * 3e-6 * 3.6e12, 1e6);
}

TEST(CudaGroupLaunches, SmallMapsLoseTheMultiprocessorsThatAreIdle) {
  // 32 x 7 x 7 rows make 13 tiles, and 512 columns make 4, so a group has 52 blocks on 132 multiprocessors, eight
  // times. All groups at once have 392 blocks, in three waves. By hand, a tile of 128 x 128 x 4608 takes 28.5 us.
  const double tile_seconds = 2 * 128 * 128 * 4608 / (7e14 / 132);
  EXPECT_NEAR(bytes_lost_to_groups(h200, convolution(32, 512, 7, 512, 3), 8),
              (7 * 3e-6 + (8 - 3) * tile_seconds) * 3.6e12, 1e6);
}

TEST(CudaGroupLaunches, ADataGradientIsMeasuredByItsOwnProduct) {
  DnnOperation op = convolution(32, 2048, 7, 512, 1);
  op.kind = DnnKind::data_gradient;  // a group has 13 x 16 tiles, in two waves; all have 1568, in twelve
  const double tile_seconds = 2 * 128 * 128 * 512 / (7e14 / 132);
  EXPECT_NEAR(bytes_lost_to_groups(h200, op, 8), (7 * 3e-6 + (16 - 12) * tile_seconds) * 3.6e12, 3e7);
}

// A host device that claims to be an H200.
class Large final : public HostDevice {
 public:
  const DeviceFacts& facts() const override { return h200; }
};

// The choices of ResNet-50 at a micro-batch of 256, as site -> way.
std::map<std::string, std::string> choices_of(std::int64_t group) {
  Large device;
  FusionTable table;
  make_backend(device, {.fusions = &table})
      ->compile(small_resnet(50, 64, "imagenet", 224, 0, 1000), 256, Precision::bf16, PassMode::training, group);
  std::map<std::string, std::string> result;
  for (const FusionChoice& choice : table.choices()) result[choice.site] = choice.way;
  return result;
}

TEST(CudaGroupLaunches, GroupsOf32AreTakenInOneLaunchWhereMapsAreSmall) {
  const auto grouped = choices_of(32), whole = choices_of(256);
  const auto fused = [](const std::map<std::string, std::string>& choices, const std::string& stage) {
    int count = 0;
    for (const auto& [site, way] : choices)
      count += site.starts_with(stage) && way.find("statistics in the epilogue") != std::string::npos;
    return count;
  };
  EXPECT_EQ(fused(whole, "layer4"), 10) << "with one group nothing changes";
  EXPECT_EQ(fused(grouped, "layer4"), 0) << "one launch computes all groups, and another kernel computes the sums";
  EXPECT_GT(fused(grouped, "layer1"), 0) << "the largest maps are worth eight launches";
}

}  // namespace
}  // namespace ringtrain::cuda
