// Compares the CPU kernels of every instruction set that this CPU has with the standard library in double precision.
#include "backend/cpu/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "base/random.h"
#include "nn/math.h"

namespace ringtrain::cpu {
namespace {

std::vector<Isa> levels_here() {
  std::vector<Isa> all;
  for (Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512_bf16})
    if (isa <= best_isa()) all.push_back(isa);
  return all;
}

double ulps(float value, double exact) {
  const float rounded = static_cast<float>(exact);
  const float next = std::nextafter(std::abs(rounded), INFINITY);
  return std::abs(static_cast<double>(value) - exact) / static_cast<double>(next - std::abs(rounded));
}

TEST(Math, ExpIsWithinTwoUlp) {
  for (float x = -86.0f; x < 88.0f; x += 0.00317f)
    ASSERT_LT(ulps(fast_exp(x), std::exp(static_cast<double>(x))), 2) << x;
  EXPECT_EQ(fast_exp(-100.0f), 0.0f);
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  EXPECT_EQ(fast_exp(-INFINITY), 0.0f);
  EXPECT_TRUE(std::isnan(fast_exp(NAN)));
}

TEST(Math, TanhIsWithinSixUlpAndOdd) {
  for (float x = 1e-6f; x < 12.0f; x = x * 1.0007f) {
    ASSERT_LT(ulps(fast_tanh(x), std::tanh(static_cast<double>(x))), 6) << x;
    ASSERT_EQ(fast_tanh(-x), -fast_tanh(x));
  }
  EXPECT_EQ(fast_tanh(0.0f), 0.0f);
  EXPECT_NEAR(fast_tanh(INFINITY), 1.0f, 1.2e-7f);
  EXPECT_TRUE(std::isnan(fast_tanh(NAN)));
}

TEST(Math, SigmoidIsWithin2e7) {
  for (float x = -30.0f; x < 30.0f; x += 0.0013f)
    ASSERT_NEAR(fast_sigmoid(x), 1 / (1 + std::exp(-static_cast<double>(x))), 2e-7) << x;
}

TEST(Math, Bf16RoundsToNearestEvenAndKeepsNotFiniteValues) {
  EXPECT_EQ(from_float<BFloat16>(1.0f).bits, 0x3f80);
  EXPECT_EQ(from_float<BFloat16>(1.00390625f).bits, 0x3f80);  // a tie goes to even
  EXPECT_EQ(from_float<BFloat16>(1.01171875f).bits, 0x3f82);  // a tie goes to even
  EXPECT_EQ(from_float<BFloat16>(1.004f).bits, 0x3f81);
  EXPECT_TRUE(std::isinf(to_float(from_float<BFloat16>(INFINITY))));
  EXPECT_TRUE(std::isnan(to_float(from_float<BFloat16>(NAN))));
  EXPECT_TRUE(std::isnan(to_float(from_float<BFloat16>(bits_float(0x7f800001u)))));
}

TEST(Kernels, SquaredNormAddsInDoublePrecision) {
  std::vector<float> v(1001, 1.0f);
  v[0] = 1e10f;
  for (Isa isa : levels_here())
    EXPECT_EQ(kernels(isa).squared_norm(1001, v.data()), 1e10f * 1e10 + 1000) << isa_name(isa);
  v[7] = NAN;
  for (Isa isa : levels_here()) EXPECT_TRUE(std::isnan(kernels(isa).squared_norm(1001, v.data())));
}

TEST(Kernels, DropoutMaskIsTheSameOnEveryInstructionSetAndDropsTheRightShare) {
  const std::int64_t rows = 64, hidden = 200;
  std::vector<std::uint8_t> first;
  for (Isa isa : levels_here()) {
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(rows * hidden), 9);
    kernels(isa).dropout_mask({99, 3, 1, 1000, 4, dropout_threshold(0.3)}, rows, hidden, mask.data());
    if (first.empty()) first = mask;
    EXPECT_EQ(mask, first) << isa_name(isa);
  }
  double kept = 0;
  for (std::uint8_t m : first) {
    ASSERT_LE(m, 1);
    kept += m;
  }
  EXPECT_NEAR(kept / static_cast<double>(first.size()), 0.7, 0.02);
}

TEST(Kernels, DropoutIsAFunctionOfTheGlobalRow) {
  std::vector<std::uint8_t> whole(8 * 96), half(4 * 96);
  const Kernels& k = kernels(best_isa());
  k.dropout_mask({7, 0, 1, 0, 2, dropout_threshold(0.5)}, 8, 96, whole.data());
  k.dropout_mask({7, 0, 1, 4, 2, dropout_threshold(0.5)}, 4, 96, half.data());
  EXPECT_EQ(0, std::memcmp(whole.data() + 4 * 96, half.data(), half.size()));
  k.dropout_mask({7, 0, 1, 4, 3, dropout_threshold(0.5)}, 4, 96, half.data());
  EXPECT_NE(0, std::memcmp(whole.data() + 4 * 96, half.data(), half.size()));
}

// Short sequences must keep the counters of earlier versions, so that old runs can be repeated. Long sequences must not
// use these counters again.
TEST(Kernels, DropoutCountersOfLongSequencesAreNewAndThoseOfShortOnesAreAsBefore) {
  const auto before = [](std::int64_t step, std::int64_t layer, std::int64_t row, std::int64_t time,
                         std::int64_t block) {
    return std::pair{static_cast<std::uint64_t>(row << 32 | time << 16 | block),
                     static_cast<std::uint64_t>(step << 16 | layer)};
  };
  const auto now = [](auto... places) {
    const DropoutCounter counter = dropout_counter(places...);
    return std::pair{counter.low, counter.high};
  };
  constexpr std::int64_t last_step = 1000000000000, last_row = 2147483647, last_layer = 64, last_block = 8191;
  for (const std::int64_t time : {0, 1, 65535})
    EXPECT_EQ(now(last_step, last_layer, last_row, time, last_block),
              before(last_step, last_layer, last_row, time, last_block));
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
  std::size_t places = 0;
  for (const std::int64_t step : {std::int64_t{0}, std::int64_t{1}, last_step})
    for (const std::int64_t row : {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, last_row})
      for (const std::int64_t time : {0, 1, 65535, 65536, 65537, 131072, 999999}) {
        seen.insert(now(step, last_layer, row, time, last_block));
        ++places;
      }
  EXPECT_EQ(seen.size(), places);
}

// On every instruction set, loss and gradient must agree with a formula in double precision, up to rounding.
TEST(Kernels, CrossEntropyMatchesDoublePrecision) {
  const std::int64_t classes = 31, width = 32, rows = 40;
  std::vector<float> logits(static_cast<std::size_t>(rows * width)), bias(static_cast<std::size_t>(width), -1e30f);
  std::vector<std::int32_t> targets;
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(3 * random_normal(5, i));
  for (std::size_t j = 0; j < static_cast<std::size_t>(classes); ++j) bias[j] = static_cast<float>(random_normal(6, j));
  for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r)
    targets.push_back(r % 7 == 3 ? -1 : static_cast<std::int32_t>(r % static_cast<std::size_t>(classes)));
  for (Isa isa : levels_here()) {
    std::vector<float> gradient(logits.size(), 7.0f), d_bias(bias.size(), 0.0f);
    const CrossEntropySums sums = kernels(isa).cross_entropy(
        CrossEntropyRows<float>{rows, classes, width, logits.data(), bias.data(), targets.data(), rows, 1, 0.5f,
                                gradient.data(), d_bias.data()});
    double loss = 0;
    std::int64_t correct = 0, counted = 0;
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
      const float* z = logits.data() + r * static_cast<std::size_t>(width);
      double total = 0, top = -1e30;
      std::size_t best = 0;
      for (std::size_t j = 0; j < static_cast<std::size_t>(classes); ++j) {
        const double v = static_cast<double>(z[j]) + static_cast<double>(bias[j]);
        total += std::exp(v);
        if (v > top) {
          top = v;
          best = j;
        }
      }
      for (std::size_t j = 0; j < static_cast<std::size_t>(width); ++j) {
        double expected = 0;
        if (targets[r] >= 0 && j < static_cast<std::size_t>(classes))
          expected = 0.5 * (std::exp(static_cast<double>(z[j]) + static_cast<double>(bias[j])) / total -
                            (static_cast<std::int32_t>(j) == targets[r] ? 1 : 0));
        ASSERT_NEAR(gradient[r * static_cast<std::size_t>(width) + j], expected, 1e-6)
            << isa_name(isa) << " " << r << " " << j;
      }
      if (targets[r] < 0) continue;
      loss += std::log(total) - (static_cast<double>(z[targets[r]]) + static_cast<double>(bias[targets[r]]));
      correct += static_cast<std::int32_t>(best) == targets[r];
      ++counted;
    }
    EXPECT_NEAR(sums.loss, loss, 1e-5 * loss) << isa_name(isa);
    EXPECT_EQ(sums.correct, correct);
    EXPECT_EQ(sums.targets, counted);
  }
}

template <class T>
void lstm_matches_on_every_isa(double tolerance) {
  const std::int64_t rows = 5, H = 83;
  const auto n = static_cast<std::size_t>(rows * H);
  std::vector<float> products(4 * n), bias(static_cast<std::size_t>(4 * H)), c0(n), d_out(n);
  for (std::size_t i = 0; i < products.size(); ++i) products[i] = static_cast<float>(2 * random_normal(1, i));
  for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(random_normal(2, i));
  for (std::size_t i = 0; i < n; ++i) c0[i] = static_cast<float>(random_normal(3, i));
  for (std::size_t i = 0; i < n; ++i) d_out[i] = static_cast<float>(random_normal(4, i));
  for (Isa isa : levels_here()) {
    std::vector<float> c(n), d_c(n, 0.25f), d_bias(bias.size(), 0.0f);
    std::vector<T> gates(4 * n), out(n);
    LstmForward<T> f{};
    f.rows = rows;
    f.hidden = H;
    f.products = products.data();
    f.addend = bias.data();
    f.c_previous = c0.data();
    f.c = c.data();
    f.gates = gates.data();
    f.out = out.data();
    f.ld_out = H;
    kernels(isa).lstm_forward(f);
    const std::vector<T> activated = gates;
    LstmBackward<T> b{};
    b.rows = rows;
    b.hidden = H;
    b.gates = gates.data();
    b.c = c.data();
    b.c_previous = c0.data();
    b.d_out = d_out.data();
    b.ld_out = H;
    b.d_c = d_c.data();
    b.d_bias = d_bias.data();
    kernels(isa).lstm_backward(b);
    std::vector<double> bias_sum(bias.size(), 0);
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r)
      for (std::size_t j = 0; j < static_cast<std::size_t>(H); ++j) {
        const std::size_t at = r * static_cast<std::size_t>(H) + j, h = static_cast<std::size_t>(H);
        const auto z = [&](std::size_t k) {
          return static_cast<double>(products[r * 4 * h + k * h + j]) + static_cast<double>(bias[k * h + j]);
        };
        const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
        const double i = sigmoid(z(0)), fg = sigmoid(z(1)), g = std::tanh(z(2)), o = sigmoid(z(3));
        const double cell = fg * static_cast<double>(c0[at]) + i * g;
        ASSERT_NEAR(c[at], cell, 1e-6) << isa_name(isa);
        ASSERT_NEAR(to_float(out[at]), o * std::tanh(cell), tolerance) << isa_name(isa);
        // The backward pass starts from the stored (rounded) activations.
        const auto a = [&](std::size_t k) { return static_cast<double>(to_float(activated[r * 4 * h + k * h + j])); };
        const double t = std::tanh(static_cast<double>(c[at])), dh = static_cast<double>(d_out[at]);
        const double dc = 0.25 + dh * a(3) * (1 - t * t);
        const double d[4] = {dc * a(2) * a(0) * (1 - a(0)), dc * static_cast<double>(c0[at]) * a(1) * (1 - a(1)),
                             dc * a(0) * (1 - a(2) * a(2)), dh * t * a(3) * (1 - a(3))};
        for (std::size_t k = 0; k < 4; ++k) {
          ASSERT_NEAR(to_float(gates[r * 4 * h + k * h + j]), d[k], tolerance) << isa_name(isa) << " gate " << k;
          bias_sum[k * h + j] += d[k];
        }
        ASSERT_NEAR(d_c[at], dc * a(1), 1e-6) << isa_name(isa);
      }
    for (std::size_t k = 0; k < bias_sum.size(); ++k) ASSERT_NEAR(d_bias[k], bias_sum[k], 1e-5) << isa_name(isa);
  }
}

TEST(Kernels, LstmCellFp32MatchesDoublePrecision) {
  lstm_matches_on_every_isa<float>(1e-6);
}
TEST(Kernels, LstmCellBf16MatchesDoublePrecision) {
  lstm_matches_on_every_isa<BFloat16>(0.02);
}

}  // namespace
}  // namespace ringtrain::cpu
