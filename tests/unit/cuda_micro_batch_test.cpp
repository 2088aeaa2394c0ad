// Tests which micro-batch a device chooses if the experiment does not set one.
#include <gtest/gtest.h>

#include "backend/cuda/image/program.h"
#include "backend/cuda/program/base.h"
#include "tests/emulation/host_device.h"
#include "tests/unit/images.h"

namespace ringtrain::cuda {
namespace {

TEST(CudaMicroBatch, IsTheLargestDivisorOfWholeGroupsThatFits) {
  for (std::int64_t rows = 1; rows <= 48; ++rows)
    for (const std::int64_t group : {0, 1, 2, 3, 8})
      for (std::int64_t room = 0; room <= 300; room += 7) {
        const std::int64_t unit = std::max<std::int64_t>(group, 1);
        if (rows % unit != 0) continue;
        const auto bytes = [](std::int64_t samples) { return 20 + 6 * samples; };
        std::int64_t expected = unit;
        for (std::int64_t m = unit; m <= rows; m += unit)
          if (rows % m == 0 && bytes(m) <= room) expected = m;
        EXPECT_EQ(largest_micro_batch({.rows = rows, .group = group}, room, 5, bytes), expected)
            << rows << " rows, groups of " << group << ", " << room << " bytes";
      }
}

TEST(CudaMicroBatch, ProgramsThatCannotFitAreNotCompiled) {
  int asked = 0;
  const auto bytes = [&](std::int64_t samples) {
    ++asked;
    return 10 * samples;
  };
  EXPECT_EQ(largest_micro_batch({.rows = 1024, .group = 1}, 160, 10, bytes), 16);
  EXPECT_EQ(asked, 1);
}

TEST(CudaMicroBatch, TheLowerBoundIsOneAndNotFarOffWhereMapsAreMostOfTheMemory) {
  for (const bool basic : {true, false})
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      HostDevice device;
      FusionTable fusions;
      const Graph graph = basic ? small_resnet(18, 16, "small", 24) : small_resnet(50, 16, "imagenet", 64);
      const auto bytes = [&](std::int64_t samples) {
        std::int64_t sum = 0;
        const auto program =
            make_image_program(device, {.fusions = &fusions}, graph, samples, samples, precision, PassMode::training);
        for (const MemoryItem& item : program->memory()) sum += item.bytes;
        return sum;
      };
      const std::int64_t least = least_bytes_per_sample(graph, precision);
      EXPECT_GT(least, 0);
      EXPECT_LE(32 * least, bytes(32));
      EXPECT_GT(3 * 64 * least, bytes(128) - bytes(64)) << "many programs would be compiled in vain";
    }
}

}  // namespace
}  // namespace ringtrain::cuda
