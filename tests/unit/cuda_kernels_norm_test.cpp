// Compares the kernels of batch norm with double precision.
#include "cuda_kernels.h"

namespace ringtrain::cuda {
namespace {

struct Size {
  std::int64_t rows;  // rows of a group
  int groups, channels;
};
std::ostream& operator<<(std::ostream& out, const Size& s) {
  return out << s.groups << " x " << s.rows << " rows, " << s.channels << " channels";
}
const Size sizes[] = {{1, 1, 8},    {7, 4, 3},   {50, 1, 4},   {130, 4, 8},  {33, 1, 17},
                      {900, 4, 17}, {70, 4, 64}, {600, 1, 64}, {5, 4, 2048}, {40, 1, 2048}};

template <class Body>
void for_all(const Body& body) {
  for (const Type type : all_types)
    for (const Size& size : sizes) {
      SCOPED_TRACE(testing::Message() << type_name(type) << ", " << size);
      body(type, size);
      if (testing::Test::HasFatalFailure()) return;
    }
}

// Adds up the partial sums of a group over all of its blocks.
double total(const Array& partial, const Size& s, int blocks, int per_block, int group, int which, int channel) {
  double sum = 0;
  for (int b = 0; b < blocks; ++b)
    sum += partial[((std::int64_t{group} * blocks + b) * per_block + which) * s.channels + channel];
  return sum;
}

TEST(CudaKernelsNorm, SumsOfEachGroupMatchDoublePrecision) {
  for_all([](Type type, const Size& s) {
    TestMemory memory;
    const int blocks = norm_blocks({}, Kernel::norm_sums, type, s.rows, s.groups, s.channels);
    const Array x = memory.array(type, s.groups * s.rows * s.channels).normal(1, 2, 0.5);
    const Array partial = memory.array(Type::fp32, std::int64_t{s.groups} * blocks * 2 * s.channels);
    ASSERT_NO_FATAL_FAILURE(
        memory.run(launch_of(type, NormSumsArguments{x.data, partial.floats(), s.rows, s.groups, s.channels, blocks})));
    for (int g = 0; g < s.groups; ++g)
      for (int c = 0; c < s.channels; ++c) {
        double sum = 0, squares = 0;
        for (std::int64_t r = 0; r < s.rows; ++r) {
          const double v = x[(g * s.rows + r) * s.channels + c];
          sum += v;
          squares += v * v;
        }
        const auto n = static_cast<double>(s.rows);
        ASSERT_NEAR(total(partial, s, blocks, 2, g, 0, c), sum, tolerance(Type::fp32, sum, n)) << g << " " << c;
        ASSERT_NEAR(total(partial, s, blocks, 2, g, 1, c), squares, tolerance(Type::fp32, squares, 4 * n));
      }
  });
}

TEST(CudaKernelsNorm, SeveralBlocksAndTilesOfChannelsAreSummed) {
  TestMemory memory;
  const Size s{3000, 2, 2056};  // 257 octets, which are two tiles
  const int blocks = norm_blocks({}, Kernel::norm_sums, Type::bf16, s.rows, s.groups, s.channels);
  ASSERT_GT(blocks, 1);
  const Array x = memory.array(Type::bf16, s.groups * s.rows * s.channels).fill(1);
  x.set(x.count - 1, 5);
  const Array partial = memory.array(Type::fp32, std::int64_t{s.groups} * blocks * 2 * s.channels);
  ASSERT_NO_FATAL_FAILURE(memory.run(
      launch_of(Type::bf16, NormSumsArguments{x.data, partial.floats(), s.rows, s.groups, s.channels, blocks})));
  for (int g = 0; g < s.groups; ++g)
    for (int c = 0; c < s.channels; ++c) {
      const bool last = g == 1 && c == s.channels - 1;
      ASSERT_EQ(total(partial, s, blocks, 2, g, 0, c), last ? 3004 : 3000) << g << " " << c;
      ASSERT_EQ(total(partial, s, blocks, 2, g, 1, c), last ? 3024 : 3000) << g << " " << c;
    }
}

struct FinalizeCase {
  TestMemory memory;
  Size s;
  int blocks;
  Array partial, gamma, beta, mean, inverse, scale, bias, typed_scale, typed_bias, statistics;
  StepState* state;
  NormFinalizeArguments a{};
  FinalizeCase(Type type, const Size& size, int block_count) : s(size), blocks(block_count) {
    const std::int64_t n = std::int64_t{s.groups} * s.channels;
    partial = memory.array(Type::fp32, n * 2 * blocks);
    for (std::int64_t i = 0; i < partial.count; ++i) {
      // The partial sums are those of about `rows` values with mean 3 and deviation 1.
      const bool squares = i / s.channels % 2 == 1;
      const double share = static_cast<double>(s.rows) / blocks;
      const double noise = random_normal(9, static_cast<std::uint64_t>(i));
      partial.set(i, squares ? share * (10 + 0.1 * noise) : share * (3 + 0.01 * noise));
    }
    gamma = memory.array(Type::fp32, s.channels).normal(2);
    beta = memory.array(Type::fp32, s.channels).normal(3);
    mean = memory.array(Type::fp32, n);
    inverse = memory.array(Type::fp32, n);
    scale = memory.array(Type::fp32, n);
    bias = memory.array(Type::fp32, n);
    typed_scale = memory.array(type, n);
    typed_bias = memory.array(type, n);
    statistics = memory.array(Type::fp32, 2 * s.channels);
    state = memory.make<StepState>(1);
    *state = {.statistic_scale = 0.25f};
    a = {.partial = partial.floats(),
         .gamma = gamma.floats(),
         .beta = beta.floats(),
         .mean = mean.floats(),
         .inverse = inverse.floats(),
         .scale = scale.floats(),
         .bias = bias.floats(),
         .scale_as_type = typed_scale.data,
         .bias_as_type = typed_bias.data,
         .mean_statistic = statistics.floats(),
         .variance_statistic = statistics.floats() + s.channels,
         .state = state,
         .rows_per_group = s.rows,
         .groups = s.groups,
         .channels = s.channels,
         .blocks = blocks,
         .epsilon = 1e-5f,
         .accumulate = false};
  }
};

// A pass that only measures statistics adds up means and mean squares, without the factor statistic_scale.
TEST(CudaKernelsNorm, MeanSquaresAreAddedUpOverTheGroupsWithoutAScale) {
  for_all([](Type type, const Size& s) {
    for (const int blocks : {1, 40}) {
      FinalizeCase k(type, s, blocks);
      k.a.mean_squares = true;
      ASSERT_NO_FATAL_FAILURE(k.memory.run(launch_of(type, k.a)));
      for (int c = 0; c < s.channels; ++c) {
        double means = 0, squares = 0;
        for (int g = 0; g < s.groups; ++g) {
          const double mean = total(k.partial, s, blocks, 2, g, 0, c) / static_cast<double>(s.rows);
          means += mean;
          squares += std::max(mean * mean, total(k.partial, s, blocks, 2, g, 1, c) / static_cast<double>(s.rows));
        }
        EXPECT_NEAR(k.statistics[c], means, 1e-5 * std::abs(means));
        EXPECT_NEAR(k.statistics[s.channels + c], squares, 1e-5 * squares);
      }
    }
  });
}

TEST(CudaKernelsNorm, StatisticsAndAffineFormMatchDoublePrecision) {
  for_all([](Type type, const Size& s) {
    for (const int blocks : {1, 3, 40})
      for (const bool accumulate : {false, true}) {
        FinalizeCase k(type, s, blocks);
        k.a.accumulate = accumulate;
        if (accumulate) k.statistics.fill(2);
        ASSERT_NO_FATAL_FAILURE(k.memory.run(launch_of(type, k.a)));
        for (int c = 0; c < s.channels; ++c) {
          double means = 0, variances = 0;
          const auto n = static_cast<double>(s.rows);
          for (int g = 0; g < s.groups; ++g) {
            const double mean = total(k.partial, s, blocks, 2, g, 0, c) / n;
            const double variance = std::max(0.0, total(k.partial, s, blocks, 2, g, 1, c) / n - mean * mean);
            const double inverse = 1 / std::sqrt(variance + static_cast<double>(k.a.epsilon));
            const std::int64_t i = std::int64_t{g} * s.channels + c;
            const double scale = k.gamma[c] * inverse, bias = k.beta[c] - mean * scale;
            ASSERT_NEAR(k.mean[i], mean, 1e-6 * std::abs(mean));
            ASSERT_NEAR(k.inverse[i], inverse, 1e-6 * inverse);
            ASSERT_NEAR(k.scale[i], scale, 1e-6 * std::abs(scale));
            ASSERT_NEAR(k.bias[i], bias, 1e-5 * (1 + std::abs(bias)));
            ASSERT_EQ(k.typed_scale[i], static_cast<double>(rounded(type, k.scale[i])));
            ASSERT_EQ(k.typed_bias[i], static_cast<double>(rounded(type, k.bias[i])));
            means += mean;
            variances += variance * n / std::max(n - 1, 1.0);
          }
          ASSERT_NEAR(k.statistics[c], (accumulate ? 2 : 0) + 0.25 * means, 1e-6 * (2 + means));
          ASSERT_NEAR(k.statistics[s.channels + c], (accumulate ? 2 : 0) + 0.25 * variances, 1e-6 * (2 + variances));
        }
      }
  });
}

TEST(CudaKernelsNorm, StatisticsOfMoreGroupsThanThreads) {
  const Size s{10, 37, 5};
  FinalizeCase k(Type::fp32, s, 2);
  ASSERT_NO_FATAL_FAILURE(k.memory.run(launch_of(Type::fp32, k.a)));
  for (int c = 0; c < s.channels; ++c) {
    double means = 0;
    for (int g = 0; g < s.groups; ++g) {
      means += total(k.partial, s, 2, 2, g, 0, c) / 10;
      ASSERT_NEAR(k.mean[g * s.channels + c], total(k.partial, s, 2, 2, g, 0, c) / 10, 1e-5);
    }
    ASSERT_NEAR(k.statistics[c], 0.25 * means, 1e-5 * means);
  }
}

TEST(CudaKernelsNorm, AConstantChannelHasNoNegativeVarianceAndANaNStays) {
  const Size s{7, 1, 2};
  FinalizeCase k(Type::fp32, s, 1);
  const float third = 1.0f / 3;
  const double sum = 7 * static_cast<double>(third);
  k.partial.set(0, sum);
  k.partial.set(2, sum * static_cast<double>(third) * (1 - 1e-6));  // rounding took more than the whole variance
  k.partial.set(1, NAN);
  ASSERT_NO_FATAL_FAILURE(k.memory.run(launch_of(Type::fp32, k.a)));
  EXPECT_NEAR(k.inverse[0], 1 / std::sqrt(1e-5), 1e-2);
  EXPECT_EQ(k.statistics[2], 0);
  EXPECT_TRUE(std::isnan(k.inverse[1]));
  EXPECT_TRUE(std::isnan(k.statistics[3]));
}

TEST(CudaKernelsNorm, NoStatisticsWhereNoneAreWanted) {
  FinalizeCase k(Type::bf16, {7, 2, 3}, 1);
  k.a.mean_statistic = k.a.variance_statistic = nullptr;
  k.a.scale_as_type = k.a.bias_as_type = nullptr;
  ASSERT_NO_FATAL_FAILURE(k.memory.run(launch_of(Type::bf16, k.a)));
  EXPECT_TRUE(std::isnan(k.statistics[0]));
  EXPECT_TRUE(std::isnan(k.typed_scale[0]));
  EXPECT_FALSE(std::isnan(k.scale[5]));
}

TEST(CudaKernelsNorm, InferenceTakesTheRunningStatistics) {
  for (const int channels : {1, 17, 300}) {
    TestMemory memory;
    const Array gamma = memory.array(Type::fp32, channels).normal(1),
                beta = memory.array(Type::fp32, channels).normal(2);
    const Array mean = memory.array(Type::fp32, channels).normal(3), var = memory.array(Type::fp32, channels).fill(0.3);
    const Array scale = memory.array(Type::fp32, channels), bias = memory.array(Type::fp32, channels);
    ASSERT_NO_FATAL_FAILURE(memory.run(launch_of(NormInferenceArguments{
        gamma.floats(), beta.floats(), mean.floats(), var.floats(), scale.floats(), bias.floats(), channels, 1e-3f})));
    for (int c = 0; c < channels; ++c) {
      const double expected = gamma[c] / std::sqrt(var[c] + 1e-3);
      ASSERT_NEAR(scale[c], expected, 1e-6 * std::abs(expected));
      ASSERT_NEAR(bias[c], beta[c] - mean[c] * expected, 1e-6 * (1 + std::abs(beta[c])));
    }
  }
}

enum class Other { none, plain, scaled };

void apply_matches(Type type, const Size& s, Other other, bool relu, bool with_mask, std::int64_t shift) {
  TestMemory memory;
  const std::int64_t rows = s.groups * s.rows, n = rows * s.channels, affine = std::int64_t{s.groups} * s.channels;
  const Array x = memory.array(type, n, shift).normal(1, 2), x2 = memory.array(type, n, shift).normal(2);
  const Array scale = memory.array(Type::fp32, affine).normal(3), bias = memory.array(Type::fp32, affine).normal(4);
  const Array scale2 = memory.array(Type::fp32, affine).normal(5), bias2 = memory.array(Type::fp32, affine).normal(6);
  const Array y = memory.array(type, n, shift);
  auto* mask = memory.make<std::uint8_t>(rows * ((s.channels + 7) / 8));
  if (n > 3) x.set(3, NAN);
  if (n > 4) x.set(4, INFINITY);
  if (n > 5) x.set(5, -INFINITY);
  const bool scaled = other == Other::scaled;
  ASSERT_NO_FATAL_FAILURE(memory.run(launch_of(
      type, NormApplyArguments{x.data, other == Other::none ? nullptr : x2.data, scale.floats(), bias.floats(),
                               scaled ? scale2.floats() : nullptr, scaled ? bias2.floats() : nullptr, y.data,
                               with_mask ? mask : nullptr, s.rows, s.groups, s.channels, relu})));
  for (std::int64_t r = 0; r < rows; ++r)
    for (int c = 0; c < s.channels; ++c) {
      const std::int64_t i = r * s.channels + c, k = r / s.rows * s.channels + c;
      double z = scale[k] * x[i] + bias[k];
      if (other == Other::plain) z += x2[i];
      if (scaled) z += scale2[k] * x2[i] + bias2[k];
      const double expected = relu && z < 0 ? 0 : z;
      if (std::isfinite(expected)) {
        ASSERT_NEAR(y[i], expected, tolerance(type, expected, 4)) << r << " " << c;
      } else {
        ASSERT_EQ(std::isnan(y[i]), std::isnan(expected)) << r << " " << c;
        ASSERT_TRUE(std::isnan(expected) || y[i] == expected) << r << " " << c;
      }
      if (with_mask && !(std::abs(z) < 1e-4)) {
        ASSERT_EQ(bit(mask, r, s.channels, c), !relu || z > 0) << r << " " << c;
      }
    }
}

TEST(CudaKernelsNorm, NormAddReluAndMaskMatchDoublePrecision) {
  for_all([](Type type, const Size& s) {
    for (const Other other : {Other::none, Other::plain, Other::scaled})
      for (const bool relu : {false, true}) {
        ASSERT_NO_FATAL_FAILURE(apply_matches(type, s, other, relu, relu, 0));
      }
  });
}

TEST(CudaKernelsNorm, AddressesBesideAMultipleOf16AreTakenElementByElement) {
  for (const Type type : all_types)
    ASSERT_NO_FATAL_FAILURE(apply_matches(type, {20, 2, 16}, Other::plain, true, true, 1));
}

struct BackwardCase {
  TestMemory memory;
  Size s;
  std::int64_t rows, n;
  Array dy, x, other;
  std::uint8_t* mask;
  BackwardCase(Type type, const Size& size) : s(size), rows(s.groups * s.rows), n(rows * s.channels) {
    dy = memory.array(type, n).normal(1);
    x = memory.array(type, n).normal(2, 1, 0.5);
    other = memory.array(type, n).normal(3);
    mask = memory.make<std::uint8_t>(rows * ((s.channels + 7) / 8));
    for (std::int64_t r = 0; r < rows; ++r)
      for (int c = 0; c < s.channels; ++c)
        set_bit(mask, r, s.channels, c, random_normal(4, static_cast<std::uint64_t>(r * s.channels + c)) > 0);
    // A NaN that the mask stops must not get through.
    dy.set(0, NAN);
    set_bit(mask, 0, s.channels, 0, false);
  }
  double dr(std::int64_t row, int c) const { return bit(mask, row, s.channels, c) ? dy[row * s.channels + c] : 0; }
};

TEST(CudaKernelsNorm, BackwardSumsMatchDoublePrecision) {
  for_all([](Type type, const Size& s) {
    for (const bool two : {false, true}) {
      BackwardCase k(type, s);
      const int blocks = norm_blocks({}, Kernel::norm_backward_sums, type, s.rows, s.groups, s.channels),
                sums = two ? 3 : 2;
      const Array partial = k.memory.array(Type::fp32, std::int64_t{s.groups} * blocks * sums * s.channels);
      ASSERT_NO_FATAL_FAILURE(k.memory.run(
          launch_of(type, NormBackwardSumsArguments{k.dy.data, k.x.data, two ? k.other.data : nullptr, k.mask,
                                                    partial.floats(), s.rows, s.groups, s.channels, blocks})));
      for (int g = 0; g < s.groups; ++g)
        for (int c = 0; c < s.channels; ++c) {
          double expected[3] = {};
          for (std::int64_t r = g * s.rows; r < (g + 1) * s.rows; ++r) {
            const double d = k.dr(r, c);
            expected[0] += d;
            expected[1] += d * k.x[r * s.channels + c];
            expected[2] += d * k.other[r * s.channels + c];
          }
          for (int i = 0; i < sums; ++i)
            ASSERT_NEAR(total(partial, s, blocks, sums, g, i, c), expected[i],
                        tolerance(Type::fp32, expected[i], std::sqrt(static_cast<double>(s.rows)) + 1))
                << g << " " << c << " " << i;
        }
    }
  });
}

TEST(CudaKernelsNorm, WithoutAMaskEveryGradientPasses) {
  BackwardCase k(Type::bf16, {9, 1, 16});
  k.dy.set(0, 1);
  const Array partial = k.memory.array(Type::fp32, 2 * 16);
  ASSERT_NO_FATAL_FAILURE(k.memory.run(launch_of(
      Type::bf16, NormBackwardSumsArguments{k.dy.data, k.x.data, nullptr, nullptr, partial.floats(), 9, 1, 16, 1})));
  double sum = 0;
  for (int r = 0; r < 9; ++r) sum += k.dy[r * 16 + 2];
  EXPECT_NEAR(partial[2], sum, 1e-5);
}

// The third and the fifth number of channels leave padding after the last group, and the last one takes several rounds
// of a warp.
TEST(CudaKernelsNorm, SumsOfChannelsThatAreTogetherAreJoined) {
  struct Together {
    int groups, channels, together;
  };
  for (const Together& s : {Together{1, 8, 8}, {3, 8, 1}, {5, 16, 5}, {4, 64, 2}, {7, 24, 9}, {2, 2048, 512}})
    for (const int blocks : {1, 5})
      for (const int which : {1, 2})
        for (const bool weighted : {false, true}) {
          SCOPED_TRACE(testing::Message() << s.groups << " " << s.channels << " " << s.together << " " << which);
          TestMemory memory;
          const int per_block = 3;
          const Array partial =
              memory.array(Type::fp32, std::int64_t{s.groups} * blocks * per_block * s.channels).normal(1);
          const Array gamma = memory.array(Type::fp32, s.channels).normal(2);
          const Array joined = memory.array(Type::fp32, std::int64_t{s.groups} * 2 * s.channels);
          ASSERT_NO_FATAL_FAILURE(memory.run(launch_of(
              NormJoinChannelsArguments{partial.floats(), weighted ? gamma.floats() : nullptr, joined.floats(),
                                        s.groups, s.channels, blocks, per_block, which, s.together})));
          const Size size{1, s.groups, s.channels};
          for (int g = 0; g < s.groups; ++g)
            for (int c = 0; c < s.channels; ++c) {
              const int first = c / s.together * s.together;
              double sum = 0, product = 0;
              for (int k = first; k < std::min(first + s.together, s.channels); ++k) {
                const double weight = weighted ? gamma[k] : 1;
                sum += weight * total(partial, size, blocks, per_block, g, 0, k) / s.together;
                product += weight * total(partial, size, blocks, per_block, g, which, k) / s.together;
              }
              ASSERT_NEAR(joined[(2 * g) * s.channels + c], sum, 1e-6 * (1 + std::abs(sum))) << g << " " << c;
              ASSERT_NEAR(joined[(2 * g + 1) * s.channels + c], product, 1e-6 * (1 + std::abs(product)))
                  << g << " " << c;
            }
        }
}

TEST(CudaKernelsNorm, BackwardCoefficientsAndGradientsMatchDoublePrecision) {
  for (const Size& s : sizes)
    for (const int which : {1, 2})
      for (const auto& [accumulate, with_gamma] : {std::pair{false, false}, {true, false}, {false, true}}) {
        SCOPED_TRACE(testing::Message() << s << " " << which << " " << with_gamma);
        TestMemory memory;
        const int blocks = 5, per_block = 3;
        const std::int64_t n = std::int64_t{s.groups} * s.channels;
        const Array partial = memory.array(Type::fp32, n * blocks * per_block).normal(1);
        const Array gamma = memory.array(Type::fp32, s.channels).normal(2);
        const Array mean = memory.array(Type::fp32, n).normal(3), inverse = memory.array(Type::fp32, n).fill(1.7);
        const Array a = memory.array(Type::fp32, n), b = memory.array(Type::fp32, n), c = memory.array(Type::fp32, n);
        const Array d_gamma = memory.array(Type::fp32, s.channels), d_beta = memory.array(Type::fp32, s.channels);
        if (accumulate) d_gamma.fill(1), d_beta.fill(2);
        ASSERT_NO_FATAL_FAILURE(memory.run(launch_of(
            NormBackwardFinalizeArguments{partial.floats(), gamma.floats(), mean.floats(), inverse.floats(), a.floats(),
                                          b.floats(), c.floats(), d_gamma.floats(), d_beta.floats(), s.rows, s.groups,
                                          s.channels, blocks, per_block, which, accumulate, with_gamma})));
        const auto rows = static_cast<double>(s.rows);
        for (int ch = 0; ch < s.channels; ++ch) {
          double gammas = accumulate ? 1 : 0, betas = accumulate ? 2 : 0;
          for (int g = 0; g < s.groups; ++g) {
            const std::int64_t i = std::int64_t{g} * s.channels + ch;
            const double sum = total(partial, s, blocks, per_block, g, 0, ch);
            const double product = total(partial, s, blocks, per_block, g, which, ch);
            const double slope = gamma[ch] * inverse[i];
            const double factor = with_gamma ? inverse[i] : slope;  // the sums contain gamma
            const double second = -factor * inverse[i] * inverse[i] * (product - mean[i] * sum) / rows;
            const double third = -factor * sum / rows - second * mean[i];
            ASSERT_NEAR(a[i], slope, 1e-6 * (1 + std::abs(slope)));
            ASSERT_NEAR(b[i], second, 1e-6 * (1 + std::abs(second)));
            ASSERT_NEAR(c[i], third, 1e-5 * (1 + std::abs(third) + std::abs(second)));
            gammas += inverse[i] * (product - mean[i] * sum);
            betas += sum;
          }
          ASSERT_NEAR(d_gamma[ch], gammas, 1e-5 * (1 + std::abs(gammas)));
          ASSERT_NEAR(d_beta[ch], betas, 1e-5 * (1 + std::abs(betas)));
        }
      }
}

TEST(CudaKernelsNorm, BackwardApplyMatchesDoublePrecision) {
  for_all([](Type type, const Size& s) {
    for (const bool two : {false, true})
      for (const bool keep : {false, true}) {
        BackwardCase k(type, s);
        const std::int64_t affine = std::int64_t{s.groups} * s.channels;
        Array line[6];
        for (std::size_t i = 0; i < 6; ++i) line[i] = k.memory.array(Type::fp32, affine).normal(10 + i);
        const Array dx = k.memory.array(type, k.n), dr = k.memory.array(type, k.n), d2 = k.memory.array(type, k.n);
        ASSERT_NO_FATAL_FAILURE(k.memory.run(launch_of(
            type, NormBackwardApplyArguments{k.dy.data, k.x.data, two ? k.other.data : nullptr, k.mask,
                                             line[0].floats(), line[1].floats(), line[2].floats(), line[3].floats(),
                                             line[4].floats(), line[5].floats(), dx.data, keep ? dr.data : nullptr,
                                             two ? d2.data : nullptr, s.rows, s.groups, s.channels})));
        for (std::int64_t r = 0; r < k.rows; ++r)
          for (int c = 0; c < s.channels; ++c) {
            const std::int64_t i = r * s.channels + c, g = r / s.rows * s.channels + c;
            const double d = k.dr(r, c);
            const double first = line[0][g] * d + line[1][g] * k.x[i] + line[2][g];
            const double second = line[3][g] * d + line[4][g] * k.other[i] + line[5][g];
            ASSERT_NEAR(dx[i], first, tolerance(type, first, 4)) << r << " " << c;
            if (keep) {
              ASSERT_EQ(dr[i], d) << r << " " << c;
            }
            if (two) {
              ASSERT_NEAR(d2[i], second, tolerance(type, second, 4)) << r << " " << c;
            }
          }
      }
  });
}

TEST(CudaKernelsNorm, GradientMayReplaceWhatItIsMadeFrom) {
  const Size s{40, 2, 24};
  BackwardCase apart(Type::bf16, s), in_place(Type::bf16, s);
  for (BackwardCase* k : {&apart, &in_place}) {
    Array line[3];
    for (std::size_t i = 0; i < 3; ++i) line[i] = k->memory.array(Type::fp32, 48).normal(10 + i);
    const Array out = k->memory.array(Type::bf16, k->n);
    k->memory.run_once(launch_of(
        Type::bf16, NormBackwardApplyArguments{k->dy.data, k->x.data, nullptr, k->mask, line[0].floats(),
                                               line[1].floats(), line[2].floats(), nullptr, nullptr, nullptr,
                                               k == &apart ? out.data : k->dy.data, nullptr, nullptr, 40, 2, 24}));
    if (k == &apart) std::memcpy(k->dy.data, out.data, static_cast<std::size_t>(k->n) * 2);
  }
  EXPECT_EQ(std::memcmp(apart.dy.data, in_place.dy.data, static_cast<std::size_t>(apart.n) * 2), 0);
}

}  // namespace
}  // namespace ringtrain::cuda
