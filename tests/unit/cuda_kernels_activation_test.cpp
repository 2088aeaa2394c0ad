// Compares the GPU's kernels for bias, ReLU, sums over rows and input with double precision.
#include "cuda_kernels.h"

namespace ringtrain::cuda {
namespace {

TEST(CudaKernelsActivation, BiasReluAndMaskInPlaceAndApart) {
  for (const Type type : all_types)
    for (const int channels : {3, 8, 17, 64, 4096})
      for (const std::int64_t rows : {1, 37})
        for (const bool relu : {false, true})
          for (const bool biased : {false, true})
            for (const bool in_place : {false, true}) {
              SCOPED_TRACE(testing::Message() << type_name(type) << " " << rows << " x " << channels);
              TestMemory memory;
              const Array x = memory.array(type, rows * channels).normal(1);
              x.set(1, NAN);
              x.set(2, -INFINITY);
              std::vector<double> before;
              for (std::int64_t i = 0; i < x.count; ++i) before.push_back(x[i]);
              const Array bias = memory.array(Type::fp32, channels).normal(2);
              const Array y = in_place ? x : memory.array(type, rows * channels);
              auto* mask = memory.make<std::uint8_t>(rows * ((channels + 7) / 8));
              ASSERT_NO_FATAL_FAILURE(
                  memory.run(launch_of(type, ActivateArguments{x.data, biased ? bias.floats() : nullptr, y.data, mask,
                                                               rows, channels, relu})));
              for (std::int64_t i = 0; i < x.count; ++i) {
                const double z = before[static_cast<std::size_t>(i)] + (biased ? bias[i % channels] : 0);
                const double e = relu && z < 0 ? 0 : z;
                ASSERT_TRUE(std::isnan(e) ? std::isnan(y[i]) : y[i] == e || std::abs(y[i] - e) <= tolerance(type, e))
                    << i << ": " << y[i] << " instead of " << e;
                ASSERT_EQ(bit(mask, i / channels, channels, i % channels), !relu || z > 0) << i;
              }
            }
}

TEST(CudaKernelsActivation, GradientPassesWhereTheMaskSaysSo) {
  for (const Type type : all_types)
    for (const int channels : {3, 8, 17, 4096})
      for (const bool in_place : {false, true}) {
        TestMemory memory;
        const std::int64_t rows = 29;
        const Array dy = memory.array(type, rows * channels).normal(1);
        auto* mask = memory.make<std::uint8_t>(rows * ((channels + 7) / 8));
        std::vector<double> expected;
        for (std::int64_t i = 0; i < dy.count; ++i) {
          const bool passes = i % 3 != 1;
          set_bit(mask, i / channels, channels, i % channels, passes);
          expected.push_back(passes ? dy[i] : 0);
        }
        dy.set(1, NAN);
        const Array dx = in_place ? dy : memory.array(type, dy.count);
        ASSERT_NO_FATAL_FAILURE(
            memory.run(launch_of(type, ActivateBackwardArguments{dy.data, mask, dx.data, rows, channels})));
        for (std::int64_t i = 0; i < dx.count; ++i) ASSERT_EQ(dx[i], expected[static_cast<std::size_t>(i)]) << i;
      }
}

// Adds up the columns with this number of blocks and compares every column with its sum in double precision.
void column_sums_are_right(Type type, std::int64_t rows, int columns, int stride, int blocks, bool accumulate) {
  SCOPED_TRACE(testing::Message() << type_name(type) << " " << rows << " x " << columns << " of " << stride << ", "
                                  << blocks << " blocks");
  TestMemory memory;
  const Array x = memory.array(type, rows * stride);  // the padding holds NaN
  for (std::int64_t i = 0; i < x.count; ++i)
    if (i % stride < columns) x.set(i, random_normal(1, static_cast<std::uint64_t>(i)));
  const Array partial = memory.array(Type::fp32, std::int64_t{blocks} * columns);
  const Array sums = memory.array(Type::fp32, columns);
  if (accumulate) sums.fill(5);
  ASSERT_NO_FATAL_FAILURE(memory.run({
      launch_of(type, ColumnSumPartsArguments{x.data, partial.floats(), rows, columns, stride, blocks}),
      launch_of(ColumnSumsArguments{partial.floats(), sums.floats(), columns, blocks, accumulate}),
  }));
  for (int c = 0; c < columns; ++c) {
    double sum = accumulate ? 5 : 0;
    for (std::int64_t r = 0; r < rows; ++r) sum += x[r * stride + c];
    ASSERT_NEAR(sums[c], sum, tolerance(Type::fp32, sum, std::sqrt(static_cast<double>(rows)))) << c;
  }
}

TEST(CudaKernelsActivation, ColumnSumsTakePaddedRowsAndAccumulate) {
  for (const Type type : all_types)
    for (const auto& [columns, stride] : {std::pair{1, 1}, {10, 16}, {17, 17}, {128, 128}, {67, 72}, {33, 40}})
      for (const std::int64_t rows : {1, 37, 2100})
        for (const bool accumulate : {false, true})
          ASSERT_NO_FATAL_FAILURE(
              column_sums_are_right(type, rows, columns, stride, column_sum_blocks(rows, columns), accumulate));
}
TEST(CudaKernelsActivation, ColumnSumsTakeWideRowsAndManyRows) {
  for (const Type type : all_types) {
    // 257 and 513 octets are two and three tiles of columns.
    for (const int columns : {2056, 4099})
      for (const std::int64_t rows : {1, 45})
        ASSERT_NO_FATAL_FAILURE(
            column_sums_are_right(type, rows, columns, columns, column_sum_blocks(rows, columns), false));
    EXPECT_EQ(column_sum_blocks(150000, 8), 74);
    ASSERT_NO_FATAL_FAILURE(column_sums_are_right(type, 150000, 8, 8, 74, false));
    // A number of blocks that the rows do not fill: some blocks have no row at all.
    for (const int blocks : {2, 16, 17, 100})
      ASSERT_NO_FATAL_FAILURE(column_sums_are_right(type, 77, 24, 24, blocks, true));
  }
}

TEST(CudaKernelsActivation, AddTakesAnyLengthAndWorksInPlace) {
  for (const Type type : all_types)
    for (const std::int64_t count : {1, 7, 8, 2047, 5000}) {
      TestMemory memory;
      const Array a = memory.array(type, count).normal(1), b = memory.array(type, count).normal(2);
      const Array y = memory.array(type, count);
      ASSERT_NO_FATAL_FAILURE(memory.run(launch_of(type, AddArguments{a.data, b.data, y.data, count})));
      for (std::int64_t i = 0; i < count; ++i) ASSERT_NEAR(y[i], a[i] + b[i], tolerance(type, a[i] + b[i])) << i;
      memory.run_once(launch_of(type, AddArguments{a.data, b.data, a.data, count}));
      for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(a[i], y[i]) << i;
    }
}

TEST(CudaKernelsActivation, PixelsAreScaledShiftedAndPadded) {
  for (const Type type : all_types)
    for (const auto& [channels, padded] : {std::pair{3, 4}, {3, 3}, {3, 8}, {1, 4}, {4, 4}, {3, 5}, {1, 1}})
      for (const std::int64_t pixels : {1, 700}) {
        SCOPED_TRACE(testing::Message() << type_name(type) << " " << pixels << " x " << channels << " in " << padded);
        TestMemory memory;
        ImageInputArguments a{};
        auto* from = memory.make<std::uint8_t>(pixels * channels);
        for (std::int64_t i = 0; i < pixels * channels; ++i) from[i] = static_cast<std::uint8_t>(i * 37 + 11);
        const Array to = memory.array(type, pixels * padded);
        a.pixels = from;
        a.output = to.data;
        a.pixel_count = pixels;
        a.channels = channels;
        a.padded = padded;
        for (int c = 0; c < channels; ++c) {
          a.scale[c] = 0.01f * static_cast<float>(c + 1);
          a.shift[c] = -static_cast<float>(c);
        }
        ASSERT_NO_FATAL_FAILURE(memory.run(launch_of(type, a)));
        for (std::int64_t i = 0; i < to.count; ++i) {
          const std::int64_t c = i % padded;
          const double e = c < channels ? from[i / padded * channels + c] * static_cast<double>(a.scale[c]) +
                                              static_cast<double>(a.shift[c])
                                        : 0;
          ASSERT_NEAR(to[i], e, tolerance(type, e)) << i;
        }
      }
}

TEST(CudaKernelsActivation, WindowsHoldThePixelsUnderTheKernel) {
  struct Stem {
    int kernel, stride, padding, height, width, channels, padded;
  };
  for (const Type type : all_types)
    for (const Stem& s : {Stem{7, 2, 3, 20, 23, 3, 152}, Stem{11, 4, 2, 31, 28, 3, 368}, Stem{3, 2, 1, 8, 8, 1, 16}}) {
      SCOPED_TRACE(testing::Message() << type_name(type) << " " << s.height << " x " << s.width << " by " << s.kernel);
      const auto windows = [&](int pixels) { return (pixels + 2 * s.padding - s.kernel) / s.stride + 1; };
      constexpr int images = 3;
      const int rows = windows(s.height), columns = windows(s.width);
      const std::int64_t bytes = std::int64_t{images} * s.height * s.width * s.channels;
      TestMemory memory;
      auto* from = memory.make<std::uint8_t>(bytes);
      for (std::int64_t i = 0; i < bytes; ++i) from[i] = static_cast<std::uint8_t>(i * 37 + 11);
      ImageInputArguments a{};
      a.windows = {s.kernel, s.stride, s.padding, s.height, s.width, rows, columns};
      a.pixel_count = std::int64_t{images} * rows * columns;
      const Array to = memory.array(type, a.pixel_count * s.padded);
      a.pixels = from;
      a.output = to.data;
      a.channels = s.channels;
      a.padded = s.padded;
      for (int c = 0; c < s.channels; ++c) {
        a.scale[c] = 0.01f * static_cast<float>(c + 1);
        a.shift[c] = -static_cast<float>(c + 1);
      }
      ASSERT_NO_FATAL_FAILURE(memory.run(launch_of(type, a)));
      for (std::int64_t i = 0; i < to.count; ++i) {
        const std::int64_t window = i / s.padded, image = window / (rows * columns), place = window % (rows * columns);
        const int tap = static_cast<int>(i % s.padded) / s.channels, c = static_cast<int>(i % s.padded) % s.channels;
        const std::int64_t row = place / columns * s.stride + tap / s.kernel - s.padding,
                           column = place % columns * s.stride + tap % s.kernel - s.padding;
        double e = 0;
        if (tap < s.kernel * s.kernel && row >= 0 && row < s.height && column >= 0 && column < s.width)
          e = from[((image * s.height + row) * s.width + column) * s.channels + c] * static_cast<double>(a.scale[c]) +
              static_cast<double>(a.shift[c]);
        ASSERT_NEAR(to[i], e, tolerance(type, e)) << i;
      }
    }
}

}  // namespace
}  // namespace ringtrain::cuda
