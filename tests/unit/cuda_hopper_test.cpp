// Tests the convolutions for Hopper as far as this is possible without a GPU: which problems they take, where the
// partial sums of their tiles lie, and how these are added up. tests/gpu/hopper.py checks the compiled kernels.
#include <numeric>

#include "backend/cuda/hopper/interface.h"
#include "cuda_kernels.h"
#include "tests/emulation/cuda_emulation.h"
// These headers must come after the definitions of CUDA's keywords.
#include "backend/cuda/hopper/sums.cuh"

namespace ringtrain::cuda::hopper {
namespace {

Description instance(Work work, std::int32_t rows, std::int32_t columns, Element type = Element::bf16) {
  Description d{};
  std::snprintf(d.name, sizeof(d.name), "%s", "tested");
  d.work = work;
  d.type = type;
  d.tile_rows = rows;
  d.tile_columns = columns;
  d.tile_depth = 64;
  return d;
}

// A convolution of ResNet-50 on maps of `size`, over groups of 32 samples.
Problem layer(Work work, std::int64_t c, std::int64_t size, std::int64_t k, std::int64_t r, std::int64_t stride,
              std::int64_t groups = 8) {
  Problem p;
  p.work = work;
  p.n = 32 * groups;
  p.c = c;
  p.h = p.w = size;
  p.k = k;
  p.r = r;
  p.stride = stride;
  p.padding = r / 2;
  p.groups = groups;
  return p;
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(CudaHopper, GroupsEndAtTilesEdgesOnAllMapsButThoseOfSevenPixels) {
  const Description wide = instance(Work::forward_sums, 128, 128);
  for (const std::int64_t size : {56, 28, 14}) {
    const Problem p = layer(Work::forward_sums, 256, size, 128, 1, 1);
    EXPECT_EQ(refusal(p, wide), "") << size;
    EXPECT_EQ(tiles_per_group(p, 128) * 128, 32 * size * size);
  }
  const std::string why = refusal(layer(Work::forward_sums, 512, 7, 2048, 1, 1), wide);
  EXPECT_TRUE(says(why, "1568 pixels, which end inside a tile of 128 rows")) << why;
  // The stride reduces the map from 14 to 7.
  EXPECT_TRUE(says(refusal(layer(Work::forward_sums, 512, 14, 512, 3, 2), wide), "end inside a tile"));
  EXPECT_EQ(refusal(layer(Work::forward_sums, 256, 28, 256, 3, 2), wide), "");
  // A single group ends where the batch ends.
  EXPECT_EQ(refusal(layer(Work::forward_sums, 512, 7, 2048, 1, 1, 1), wide), "");
}

TEST(CudaHopper, WhatIsLeftToOthersIsRefusedWithTheReason) {
  const Description gradient = instance(Work::gradient_sums, 128, 128);
  EXPECT_TRUE(says(refusal(layer(Work::gradient_sums, 256, 28, 256, 3, 2), gradient), "left to cuDNN"));
  EXPECT_EQ(refusal(layer(Work::gradient_sums, 256, 28, 256, 3, 1), gradient), "");
  const Description forward = instance(Work::forward_sums, 128, 128);
  EXPECT_TRUE(says(refusal(layer(Work::forward_sums, 8, 224, 64, 7, 2), forward), "8 channels, expected at least 32"));
  EXPECT_TRUE(says(refusal(layer(Work::forward_sums, 68, 56, 64, 1, 1), forward), "multiples of 8"));
  EXPECT_TRUE(says(refusal(layer(Work::gradient_sums, 64, 56, 64, 1, 1), forward), "something else"));
  Problem p = layer(Work::forward_sums, 64, 56, 64, 1, 1);
  p.type = Element::fp16;
  EXPECT_TRUE(says(refusal(p, forward), "something else"));
  p = layer(Work::forward_sums, 64, 56, 64, 1, 1);
  p.groups = 3;
  EXPECT_TRUE(says(refusal(p, forward), "256 samples are not 3 equal groups"));
  p = layer(Work::weight_gradient, 64, 56, 64, 1, 1, 1);
  const Description weight = instance(Work::weight_gradient, 128, 128);
  EXPECT_EQ(refusal(p, weight), "");
  p.result = Element::fp16;
  EXPECT_TRUE(says(refusal(p, weight), "bf16 in fp16"));
}

TEST(CudaHopper, TheWorkspaceHoldsAllPartialSumsAndNothingTwice) {
  for (const std::int32_t columns : {64, 128}) {
    const Description wide = instance(Work::forward_sums, 128, columns);
    for (const std::int64_t k : {64, 72, 128, 520}) {
      const Problem p = layer(Work::forward_sums, 64, 28, k, 1, 1, 2);
      const Workspace space = workspace_of(p, wide);
      EXPECT_GE(space.sum_columns, k);
      EXPECT_LT(space.sum_columns, k + columns);
      EXPECT_EQ(space.sum_columns % columns, 0);
      const std::int64_t each = 2 * 196 * space.sum_columns * 4;
      EXPECT_GE(space.sum_other - space.sum, each);
      EXPECT_GE(space.bytes - space.sum_other, each);
      EXPECT_LT(space.bytes, 2 * each + 512);
      EXPECT_EQ(space.sum_other % 256, 0);
    }
  }
}

TEST(CudaHopper, AWeightGradientsSplitsTakeEveryStepOnceAndKeepTheGpuBusy) {
  const Description weight = instance(Work::weight_gradient, 128, 128);
  struct Layer {
    std::int64_t c, size, k, r;
  };
  for (const Layer l : {Layer{64, 56, 64, 1},
                        {64, 56, 64, 3},
                        {256, 56, 64, 1},
                        {128, 28, 128, 3},
                        {1024, 14, 256, 1},
                        {256, 14, 256, 3},
                        {512, 7, 512, 3},
                        {2048, 7, 512, 1}}) {
    const Problem p = layer(Work::weight_gradient, l.c, l.size, l.k, l.r, 1, 1);
    const std::int64_t splits = weight_gradient_splits(p, weight), steps = tiles_of(32 * l.size * l.size, 64);
    const std::int64_t each = steps_per_split(p, 64, splits);
    EXPECT_GE(splits * each, steps);
    EXPECT_LT((splits - 1) * each, steps) << "a split without a step";
    EXPECT_EQ(workspace_of(p, weight).bytes, tiles_of(splits * l.k * l.r * l.r * l.c * 4, 256) * 256);
    const std::int64_t blocks = splits * tiles_of(l.k, 128) * tiles_of(l.c, 128) * l.r * l.r;
    if (steps / splits > 16) {
      EXPECT_GT(static_cast<double>(blocks) / static_cast<double>(tiles_of(blocks, 132) * 132), 0.75)
          << l.c << " " << l.size << " " << l.k << " " << l.r << ": " << blocks << " blocks";
    }
  }
}

// Adds up one tile as the four warps of an epilogue do. Rows from `rows_left` on do not exist.
template <int rows, int columns>
void add_up_tile(const std::vector<float>& values, const std::vector<float>& others, std::int64_t first,
                 std::int64_t row_stride, std::int64_t rows_left, float* sum, float* other) {
  using Sums = emulated::TileSums<rows, columns>;
  typename Sums::Shared shared;
  std::memset(&shared, 0xff, sizeof(shared));
  emulated::run_grid({1, 1, 1}, 128, true, false, [&] {
    const int thread = static_cast<int>(emulated::threadIdx.x);
    Sums sums;
    for (int step_n = 0; step_n < columns / 32; ++step_n)
      for (int step_m = 0; step_m < rows / 64; ++step_m) {
        sums.begin(step_m);
        for (int i = 0; i < 16; ++i) {
          const std::int64_t row = step_m * 64 + thread / 32 * 16 + thread % 32 / 4 + Sums::row_of(i);
          const std::int64_t column = step_n * 32 + thread % 4 * 2 + Sums::column_of(i);
          const auto at = static_cast<std::size_t>(first + row * row_stride + column);
          if (row < rows_left) sums.add(i, values[at], others[at]);
        }
        sums.end(thread, step_m, step_n, shared);
      }
    emulated::__syncthreads();
    for (int i = thread; i < 2 * columns; i += 128)
      (i < columns ? sum : other)[i % columns] = Sums::total(shared, i / columns, i % columns);
  });
}

// Computes the two sums through tiles, workspace and reduction, and compares them with float64 sums over the group.
template <int columns>
void sums_of_groups(std::int64_t groups, std::int64_t rows_per_group, std::int64_t channels) {
  const Description d = instance(Work::forward_sums, 128, columns);
  Problem p;
  p.n = groups;
  p.h = rows_per_group;
  p.w = p.r = 1;
  p.c = 64;
  p.k = channels;
  p.groups = groups;
  ASSERT_EQ(refusal(p, d), "");
  const Workspace space = workspace_of(p, d);
  const std::int64_t rows = groups * rows_per_group, row_stride = space.sum_columns;
  std::vector<float> values(static_cast<std::size_t>(tiles_of(rows, 128) * 128 * row_stride)), others(values);
  for (std::size_t i = 0; i < values.size(); ++i) {  // values outside the tensor would change the sums
    values[i] = from_bf16(to_bf16(static_cast<float>(random_normal(1, i))));
    others[i] = from_bf16(to_bf16(static_cast<float>(random_normal(2, i))));
  }
  std::vector<std::byte> workspace(static_cast<std::size_t>(space.bytes), std::byte{0xff});
  auto* sum = reinterpret_cast<float*>(workspace.data() + space.sum);
  auto* other = reinterpret_cast<float*>(workspace.data() + space.sum_other);
  for (std::int64_t m = 0; m < tiles_of(rows, 128); ++m)
    for (std::int64_t n = 0; n < row_stride / columns; ++n) {
      const std::int64_t at = m * row_stride + n * columns;
      add_up_tile<128, columns>(values, others, m * 128 * row_stride + n * columns, row_stride, rows - m * 128,
                                sum + at, other + at);
    }
  std::vector<float> result(static_cast<std::size_t>(groups * 2 * channels), NAN);
  const emulated::ReduceTilesArguments a{sum,
                                         other,
                                         result.data(),
                                         result.data() + channels,
                                         2 * channels,
                                         space.sum_columns,
                                         static_cast<int>(tiles_per_group(p, 128)),
                                         static_cast<int>(channels)};
  emulated::run_grid(
      {static_cast<unsigned>(tiles_of(channels, emulated::reduce_channels)), static_cast<unsigned>(groups), 1},
      emulated::reduce_channels * emulated::reduce_parts, true, false, [&] { emulated::reduce_tiles<float>(a); });
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t c = 0; c < channels; ++c) {
      double of_values = 0, of_products = 0, size = 0;
      for (std::int64_t row = g * rows_per_group; row < (g + 1) * rows_per_group; ++row) {
        const auto at = static_cast<std::size_t>(row * row_stride + c);
        of_values += static_cast<double>(values[at]);
        of_products += static_cast<double>(values[at]) * static_cast<double>(others[at]);
        size += std::abs(static_cast<double>(values[at]));
      }
      const auto at = static_cast<std::size_t>(g * 2 * channels + c);
      EXPECT_NEAR(static_cast<double>(result[at]), of_values, 1e-6 * size) << "group " << g << ", channel " << c;
      EXPECT_NEAR(static_cast<double>(result[at + static_cast<std::size_t>(channels)]), of_products, 1e-6 * size)
          << "group " << g << ", channel " << c;
    }
}

TEST(CudaHopper, PartialSumsOfTilesAddUpToThoseOfGroups) {
  sums_of_groups<128>(2, 256, 136);  // the second tile of columns is mostly empty
  sums_of_groups<64>(3, 128, 64);
  sums_of_groups<64>(1, 5120, 72);
  sums_of_groups<64>(1, 128 * 131, 16);  // a block has fewer parts than there are tiles
}
TEST(CudaHopper, TheLastTileOfTheOnlyGroupMayBeUnfinished) {
  sums_of_groups<128>(1, 128 + 77, 40);
  sums_of_groups<64>(1, 5, 64);
}

TEST(CudaHopper, SplitsOfAWeightGradientAddUp) {
  for (const Type type : all_types)
    for (const auto& [splits, sharers] : {std::pair{1, 1}, {5, 1}, {8, 2}, {31, 4}, {132, 16}}) {
      SCOPED_TRACE(testing::Message() << type_name(type) << ", " << splits << " splits");
      ASSERT_EQ(emulated::sharers_of(splits), sharers);
      constexpr std::int64_t count = 8 * 300;
      TestMemory memory;
      const Array parts = memory.array(Type::fp32, splits * count), to = memory.array(type, count);
      parts.normal(3);
      const emulated::ReduceSplitsArguments a{parts.floats(), to.data, count, splits, sharers, 0.25f};
      emulated::run_grid({static_cast<unsigned>(tiles_of(count, 8 * emulated::reduce_threads / sharers)), 1, 1},
                         emulated::reduce_threads, true, false, [&] {
                           if (type == Type::fp32) emulated::reduce_splits<float>(a);
                           if (type == Type::bf16) emulated::reduce_splits<emulated::Bf16>(a);
                           if (type == Type::fp16) emulated::reduce_splits<emulated::Fp16>(a);
                         });
      for (std::int64_t i = 0; i < count; ++i) {
        double sum = 0;
        for (int split = 0; split < splits; ++split) sum += parts[split * count + i];
        const double e = 0.25 * sum;
        ASSERT_NEAR(to[i], e, tolerance(type, e, std::sqrt(static_cast<double>(splits)))) << i;
      }
    }
}

TEST(CudaHopper, TilesBeyondTheLastOneBelongToTheLastGroup) {
  for (int tile = 0; tile < 12; ++tile) EXPECT_EQ(emulated::group_of_tile(tile, 4, 3), tile / 4);
  EXPECT_EQ(emulated::group_of_tile(12, 4, 3), 2);
  EXPECT_EQ(emulated::group_of_tile(1, 1, 1), 0);
}

TEST(CudaHopper, TheGateLetsThroughWhereTheOutputIsPositive) {
  EXPECT_EQ(emulated::gated(3, 1e-30f), 3);
  EXPECT_EQ(emulated::gated(3, 0), 0);
  EXPECT_EQ(emulated::gated(3, -1), 0);
  EXPECT_EQ(emulated::gated(3, NAN), 0);
}

}  // namespace
}  // namespace ringtrain::cuda::hopper
