// Compares the kernels of image models, for every instruction set that this CPU has, with loops in double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/kernels.h"
#include "base/random.h"

namespace ringtrain::cpu {
namespace {

std::vector<Isa> here() {
  std::vector<Isa> all;
  for (Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512_bf16})
    if (isa <= best_isa()) all.push_back(isa);
  return all;
}

double wide(float x) {
  return static_cast<double>(x);
}
double wide(BFloat16 x) {
  return static_cast<double>(to_float(x));
}

template <class T>
std::vector<T> normal(std::uint64_t key, std::size_t n, double deviation = 1, double mean = 0) {
  std::vector<T> values;
  for (std::size_t i = 0; i < n; ++i)
    values.push_back(from_float<T>(static_cast<float>(mean + deviation * random_normal(key, i))));
  return values;
}

template <class T>
constexpr double rounding = sizeof(T) == 2 ? 1.0 / 128 : 2e-6;

// Holds one unit, which is `pixels` pixels of `lanes` channels, with random inputs for the passes of batch norm.
template <class T>
struct NormCase {
  Isa isa;
  const NormKernels& kernels;
  std::size_t lanes, pixels, n;
  std::vector<T> x, x2, d0, d1;
  std::vector<float> mean, scale, beta, mean2, scale2, beta2, slope, constant, slope2, constant2;
  Affine norm, norm2;

  NormCase(Isa the_isa, std::size_t the_pixels)
      : isa(the_isa),
        kernels(norm_kernels(the_isa)),
        lanes(static_cast<std::size_t>(kernels.lanes)),
        pixels(the_pixels),
        n(pixels * lanes),
        x(normal<T>(1, n, 2, 3)),
        x2(normal<T>(2, n, 1, -1)),
        d0(normal<T>(3, n)),
        d1(normal<T>(4, n)),
        mean(normal<float>(5, lanes, 1, 3)),
        scale(normal<float>(6, lanes)),
        beta(normal<float>(7, lanes)),
        mean2(normal<float>(8, lanes)),
        scale2(normal<float>(9, lanes)),
        beta2(normal<float>(10, lanes)),
        slope(normal<float>(11, lanes)),
        constant(normal<float>(12, lanes)),
        slope2(normal<float>(13, lanes)),
        constant2(normal<float>(14, lanes)),
        norm{mean.data(), scale.data(), beta.data()},
        norm2{mean2.data(), scale2.data(), beta2.data()} {}

  double first(std::size_t i) const {
    return (wide(x[i]) - wide(mean[i % lanes])) * wide(scale[i % lanes]) + wide(beta[i % lanes]);
  }
  double second(std::size_t i) const {
    return (wide(x2[i]) - wide(mean2[i % lanes])) * wide(scale2[i % lanes]) + wide(beta2[i % lanes]);
  }
};

bool bit(const std::vector<std::uint8_t>& mask, std::size_t i) {
  return (mask[i / 8] >> (i % 8) & 1) != 0;
}

template <class T>
void near(const std::vector<T>& values, const std::vector<double>& expected, Isa isa, const char* what) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_NEAR(wide(values[i]), expected[i], rounding<T> * (1 + std::abs(expected[i])))
        << isa_name(isa) << " " << what << " " << i;
}

constexpr std::size_t sizes[] = {1, 7, 49, 257, 1025};

template <class T>
void moments_match(double offset) {
  for (Isa isa : here())
    for (std::size_t pixels : sizes) {
      const NormKernels& kernels = norm_kernels(isa);
      const auto lanes = static_cast<std::size_t>(kernels.lanes);
      const std::vector<T> x = normal<T>(1, pixels * lanes, 2, offset);
      std::vector<double> result(2 * lanes);
      kernels.moments(static_cast<std::int64_t>(pixels), x.data(), result.data());
      for (std::size_t c = 0; c < lanes; ++c) {
        double mean = 0, squares = 0;
        for (std::size_t p = 0; p < pixels; ++p) mean += wide(x[p * lanes + c]);
        mean /= static_cast<double>(pixels);
        for (std::size_t p = 0; p < pixels; ++p) squares += std::pow(wide(x[p * lanes + c]) - mean, 2);
        ASSERT_NEAR(result[c], mean, 1e-6 * (1 + std::abs(mean))) << isa_name(isa) << " " << pixels;
        ASSERT_NEAR(result[lanes + c], squares, 1e-5 * (1 + squares)) << isa_name(isa) << " " << pixels;
      }
    }
}

TEST(ImageKernels, MomentsMatchDoublePrecision) {
  moments_match<float>(0.5);
  moments_match<BFloat16>(0.5);
}
TEST(ImageKernels, MomentsOfValuesFarFromZeroDoNotCancel) {
  moments_match<float>(10000);
}

template <class T>
void forward_matches() {
  for (Isa isa : here())
    for (std::size_t pixels : sizes)
      for (int second : {0, 1, 2})
        for (bool relu : {false, true}) {
          const NormCase<T> c(isa, pixels);
          std::vector<T> y(c.n);
          std::vector<std::uint8_t> mask(c.n / 8);
          std::vector<double> expected(c.n);
          NormForward<T> a{};
          a.pixels = static_cast<std::int64_t>(pixels);
          a.x = c.x.data();
          a.norm = c.norm;
          if (second > 0) a.second = c.x2.data();
          if (second > 1) a.norm2 = c.norm2;
          a.relu = relu;
          a.y = y.data();
          if (relu) a.mask = mask.data();
          c.kernels.forward(a);
          for (std::size_t i = 0; i < c.n; ++i) {
            const double z = c.first(i) + (second == 0 ? 0 : (second == 1 ? wide(c.x2[i]) : c.second(i)));
            expected[i] = relu ? std::max(z, 0.0) : z;
            if (!relu || std::abs(z) < 1e-5) continue;
            ASSERT_EQ(bit(mask, i), z > 0) << isa_name(isa) << " " << i;
          }
          near(y, expected, isa, "y");
        }
}

TEST(ImageKernels, NormAddReluMatchesDoublePrecision) {
  forward_matches<float>();
  forward_matches<BFloat16>();
}

TEST(ImageKernels, ReluLetsNaNThrough) {
  for (Isa isa : here()) {
    NormCase<float> c(isa, 1);
    c.x[3] = NAN;
    std::vector<float> y(c.n);
    NormForward<float> a{};
    a.pixels = 1;
    a.x = c.x.data();
    a.norm = c.norm;
    a.relu = true;
    a.y = y.data();
    c.kernels.forward(a);
    EXPECT_TRUE(std::isnan(y[3])) << isa_name(isa);
  }
}

enum class Passing { bits, values, norm, all };

template <class T>
void backward_matches(Passing passing, bool two_sources, bool two_norms) {
  for (Isa isa : here())
    for (std::size_t pixels : sizes) {
      const NormCase<T> c(isa, pixels);
      std::vector<std::uint8_t> mask(c.n / 8);
      for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = static_cast<std::uint8_t>(random_uniform(20, i) * 256);
      const std::vector<T> values = normal<T>(21, c.n);
      std::vector<T> dz(c.n), again(c.n);
      std::vector<double> sums(3 * c.lanes);
      NormBackwardSums<T> a{};
      a.pixels = static_cast<std::int64_t>(pixels);
      a.d0 = c.d0.data();
      if (two_sources) a.d1 = c.d1.data();
      if (passing == Passing::bits) a.mask = mask.data();
      if (passing == Passing::values) a.values = values.data();
      if (passing == Passing::norm) a.activation = again.data();
      a.relu = passing == Passing::norm;
      a.x = c.x.data();
      a.norm = c.norm;
      if (two_norms) {
        a.x2 = c.x2.data();
        a.mean2 = c.mean2.data();
      }
      a.dz = dz.data();
      a.sums = sums.data();
      c.kernels.backward_sums(a);

      std::vector<double> expected(c.n), activation(c.n), total(3 * c.lanes), size(3 * c.lanes);
      for (std::size_t i = 0; i < c.n; ++i) {
        const bool passes = passing == Passing::all || (passing == Passing::bits && bit(mask, i)) ||
                            (passing == Passing::values && wide(values[i]) > 0) ||
                            (passing == Passing::norm && c.first(i) > 0);
        expected[i] = passes ? wide(c.d0[i]) + (two_sources ? wide(c.d1[i]) : 0) : 0;
        activation[i] = std::max(c.first(i), 0.0);
        const double terms[3] = {expected[i], expected[i] * (wide(c.x[i]) - wide(c.mean[i % c.lanes])),
                                 two_norms ? expected[i] * (wide(c.x2[i]) - wide(c.mean2[i % c.lanes])) : 0};
        for (std::size_t k = 0; k < 3; ++k) {
          total[k * c.lanes + i % c.lanes] += terms[k];
          size[k * c.lanes + i % c.lanes] += std::abs(terms[k]);
        }
      }
      near(dz, expected, isa, "dz");
      if (passing == Passing::norm) near(again, activation, isa, "activation");
      for (std::size_t i = 0; i < total.size(); ++i)
        ASSERT_NEAR(sums[i], total[i], 2e-6 * (1 + size[i])) << isa_name(isa) << " sum " << i << " pixels " << pixels;

      // This is the second half of the backward pass. With two norms it works in place: dx2 replaces the masked
      // gradient, as in a network.
      std::vector<T> dx(c.n), dx2 = dz;
      NormBackwardApply<T> b{};
      b.pixels = a.pixels;
      b.x = c.x.data();
      b.norm = c.norm;
      b.slope = c.slope.data();
      b.constant = c.constant.data();
      b.dx = dx.data();
      std::vector<double> from(c.n), other(c.n);
      for (std::size_t i = 0; i < c.n; ++i) {
        const std::size_t l = i % c.lanes;
        from[i] =
            wide(c.scale[l]) * wide(dz[i]) + wide(c.slope[l]) * (wide(c.x[i]) - wide(c.mean[l])) + wide(c.constant[l]);
        other[i] = wide(c.scale2[l]) * wide(dz[i]) + wide(c.slope2[l]) * (wide(c.x2[i]) - wide(c.mean2[l])) +
                   wide(c.constant2[l]);
      }
      if (two_norms) {
        b.dz = dx2.data();
        b.x2 = c.x2.data();
        b.norm2 = c.norm2;
        b.slope2 = c.slope2.data();
        b.constant2 = c.constant2.data();
        b.dx2 = dx2.data();
        c.kernels.backward_apply(b);
        near(dx2, other, isa, "dx2");
      } else if (passing == Passing::norm && !two_sources) {  // applies the mask again, does not read dz
        b.dz = c.d0.data();
        b.relu = true;
        c.kernels.backward_apply(b);
      } else {
        b.dz = dz.data();
        c.kernels.backward_apply(b);
      }
      near(dx, from, isa, "dx");
    }
}

TEST(ImageKernels, NormReluBackwardMatchesDoublePrecision) {
  backward_matches<float>(Passing::norm, false, false);
  backward_matches<float>(Passing::norm, true, false);
  backward_matches<float>(Passing::all, false, false);
  backward_matches<BFloat16>(Passing::norm, false, false);
}
TEST(ImageKernels, BlockEndBackwardMatchesDoublePrecision) {
  backward_matches<float>(Passing::bits, false, false);
  backward_matches<float>(Passing::bits, true, false);
  backward_matches<float>(Passing::values, true, false);
  backward_matches<BFloat16>(Passing::bits, true, false);
}
TEST(ImageKernels, BlockEndWithTwoNormsBackwardMatchesDoublePrecision) {
  backward_matches<float>(Passing::bits, true, true);
  backward_matches<float>(Passing::bits, false, true);
  backward_matches<BFloat16>(Passing::bits, true, true);
}

TEST(ImageKernels, GradientsWithoutANormAreAddedUpAndMaskedIntoTwoPlaces) {
  for (Isa isa : here()) {
    const NormCase<float> c(isa, 49);
    std::vector<float> dz = c.d1, dz2(c.n);
    NormBackwardSums<float> a{};
    a.pixels = 49;
    a.d0 = c.d0.data();
    a.d1 = dz.data();
    a.values = c.x2.data();
    a.dz = dz.data();
    a.dz2 = dz2.data();
    c.kernels.backward_sums(a);
    for (std::size_t i = 0; i < c.n; ++i)
      ASSERT_EQ(dz[i], c.x2[i] > 0 ? c.d0[i] + c.d1[i] : 0.0f) << isa_name(isa) << " " << i;
    EXPECT_EQ(dz, dz2);
  }
}

// ---- Pooling -------------------------------------------------------------------------------------------------------

struct PoolCase {
  std::int64_t height, width, kernel, stride, padding;
};

template <class T>
void pooling_matches(const PoolCase& c, bool two_sources) {
  for (Isa isa : here()) {
    const ImageKernels& kernels = image_kernels(isa);
    const std::int64_t lanes = norm_kernels(isa).lanes;
    const std::int64_t out_height = (c.height + 2 * c.padding - c.kernel) / c.stride + 1;
    const std::int64_t out_width = (c.width + 2 * c.padding - c.kernel) / c.stride + 1;
    const auto in = static_cast<std::size_t>(c.height * c.width * lanes);
    const auto out = static_cast<std::size_t>(out_height * out_width * lanes);
    std::vector<T> x = normal<T>(1, in, 1, -5);                         // below zero, because padding must not win
    for (T& v : x) v = from_float<T>(std::round(to_float(v) * 2) / 2);  // makes many ties
    const std::vector<T> d0 = normal<T>(2, out), d1 = normal<T>(3, out);
    std::vector<T> y(out), dx(in);
    std::vector<std::uint8_t> place(out);
    MaxPoolUnit<T> a{};
    a.height = c.height;
    a.width = c.width;
    a.out_height = out_height;
    a.out_width = out_width;
    a.kernel = c.kernel;
    a.stride = c.stride;
    a.padding = c.padding;
    a.x = x.data();
    a.y = y.data();
    a.place = place.data();
    kernels.max_pool(a);
    a.d0 = d0.data();
    if (two_sources) a.d1 = d1.data();
    a.dx = dx.data();
    kernels.max_pool_backward(a);
    std::vector<double> largest(out), gradient(in, 0.0);
    for (std::int64_t i = 0; i < out_height; ++i)
      for (std::int64_t j = 0; j < out_width; ++j)
        for (std::int64_t l = 0; l < lanes; ++l) {
          double best = -INFINITY;
          std::size_t from = 0;
          for (std::int64_t r = 0; r < c.kernel; ++r)
            for (std::int64_t k = 0; k < c.kernel; ++k) {
              const std::int64_t row = i * c.stride - c.padding + r, column = j * c.stride - c.padding + k;
              if (row < 0 || row >= c.height || column < 0 || column >= c.width) continue;
              const auto at = static_cast<std::size_t>((row * c.width + column) * lanes + l);
              if (wide(x[at]) > best) {  // the first of equals, as in PyTorch
                best = wide(x[at]);
                from = at;
              }
            }
          const auto at = static_cast<std::size_t>((i * out_width + j) * lanes + l);
          largest[at] = best;
          gradient[from] += wide(d0[at]) + (two_sources ? wide(d1[at]) : 0);
        }
    near(y, largest, isa, "y");
    near(dx, gradient, isa, "dx");
  }
}

TEST(ImageKernels, MaxPoolingAndItsGradientMatchLoops) {
  for (const PoolCase& c :
       {PoolCase{9, 9, 3, 2, 1}, PoolCase{8, 10, 3, 2, 1}, PoolCase{7, 8, 3, 2, 0}, PoolCase{7, 6, 2, 2, 0},
        PoolCase{5, 5, 3, 1, 1}, PoolCase{4, 4, 3, 3, 1}, PoolCase{1, 1, 3, 2, 1}, PoolCase{2, 3, 3, 2, 1}})
    for (bool two_sources : {false, true}) {
      SCOPED_TRACE(c.height * 1000 + c.width * 100 + c.kernel * 10 + c.stride);
      pooling_matches<float>(c, two_sources);
      pooling_matches<BFloat16>(c, two_sources);
    }
}

TEST(ImageKernels, AveragePoolingSharesItsGradientEvenly) {
  for (Isa isa : here()) {
    const ImageKernels& kernels = image_kernels(isa);
    const auto lanes = static_cast<std::size_t>(norm_kernels(isa).lanes);
    const std::vector<float> x = normal<float>(1, 49 * lanes), dy = normal<float>(2, 5);
    std::vector<float> y(5), dx(49 * lanes);
    kernels.average(49, 5, x.data(), y.data());
    kernels.average_backward(49, 5, dy.data(), dx.data());
    for (std::size_t c = 0; c < 5; ++c) {
      double sum = 0;
      for (std::size_t p = 0; p < 49; ++p) sum += wide(x[p * lanes + c]);
      EXPECT_NEAR(y[c], sum / 49, 1e-6) << isa_name(isa);
    }
    for (std::size_t i = 0; i < dx.size(); ++i)
      ASSERT_NEAR(dx[i], i % lanes < 5 ? dy[i % lanes] / 49 : 0, 1e-7) << isa_name(isa);
  }
}

TEST(ImageKernels, FlatteningPutsChannelsFirst) {
  for (Isa isa : here()) {
    const ImageKernels& kernels = image_kernels(isa);
    const auto lanes = static_cast<std::size_t>(norm_kernels(isa).lanes);
    const std::vector<float> x = normal<float>(1, 6 * lanes);
    std::vector<float> y(5 * 6), dx(6 * lanes, 9.0f);
    kernels.flatten(6, 5, x.data(), y.data());
    for (std::size_t c = 0; c < 5; ++c)
      for (std::size_t p = 0; p < 6; ++p) ASSERT_EQ(y[c * 6 + p], x[p * lanes + c]) << isa_name(isa);
    kernels.flatten_backward(6, 5, y.data(), dx.data());
    for (std::size_t i = 0; i < dx.size(); ++i) ASSERT_EQ(dx[i], i % lanes < 5 ? x[i] : 0.0f) << isa_name(isa);
  }
}

TEST(ImageKernels, BlocksOfAWeightGradientGoHomeAndAddUp) {
  for (Isa isa : here())
    for (std::int64_t places : {1, 9}) {
      const std::int64_t lanes = norm_kernels(isa).lanes, inputs = 3 * lanes;
      const std::vector<float> block = normal<float>(1, static_cast<std::size_t>(places * lanes * lanes));
      std::vector<float> flat(static_cast<std::size_t>(lanes * inputs * places), 7.0f);
      for (bool accumulate : {false, true})
        image_kernels(isa).store_weights(inputs, places, block.data(), flat.data() + lanes * places, accumulate);
      for (std::int64_t o = 0; o < lanes; ++o)
        for (std::int64_t i = 0; i < inputs; ++i)
          for (std::int64_t p = 0; p < places; ++p) {
            const float value = flat[static_cast<std::size_t>((o * inputs + i) * places + p)];
            const bool inside = i >= lanes && i < 2 * lanes;
            const std::int64_t at = inside ? (p * lanes + i - lanes) * lanes + o : 0;
            ASSERT_EQ(value, inside ? 2 * block[static_cast<std::size_t>(at)] : 7.0f) << isa_name(isa);
          }
    }
}

// ---- Loss ----------------------------------------------------------------------------------------------------------

TEST(ImageKernels, SmoothedCrossEntropyAndItsGradientMatchDoublePrecision) {
  for (Isa isa : here())
    for (std::size_t classes : {3ul, 10ul, 1000ul, 21841ul})
      for (double smoothing : {0.0, 0.1}) {
        std::vector<float> z = normal<float>(classes, classes, 4), gradient(classes);
        const std::size_t target = classes / 2;
        double total = 0, loss = 0;
        for (float v : z) total += std::exp(wide(v));
        for (std::size_t j = 0; j < classes; ++j) {
          const double q = (j == target ? 1 - smoothing : 0) + smoothing / static_cast<double>(classes);
          loss -= q * (wide(z[j]) - std::log(total));
        }
        const ClassScore score =
            image_kernels(isa).cross_entropy(static_cast<std::int64_t>(classes), z.data(),
                                             static_cast<std::int64_t>(target), smoothing, 0.5f, gradient.data());
        EXPECT_NEAR(score.loss, loss, 1e-6 * loss) << isa_name(isa) << " " << classes;
        for (std::size_t j = 0; j < classes; ++j) {
          const double q = (j == target ? 1 - smoothing : 0) + smoothing / static_cast<double>(classes);
          ASSERT_NEAR(gradient[j], 0.5 * (std::exp(wide(z[j])) / total - q), 1e-6) << isa_name(isa) << " " << j;
        }
        // Training computes the gradient in place, too.
        image_kernels(isa).cross_entropy(static_cast<std::int64_t>(classes), z.data(),
                                         static_cast<std::int64_t>(target), smoothing, 0.5f, z.data());
        EXPECT_EQ(z, gradient);
      }
}

TEST(ImageKernels, ATargetIsAmongTheFirstFiveWhenFewerThanFiveAreLarger) {
  for (Isa isa : here()) {
    const auto score = [&](std::vector<float> z, std::int64_t target) {
      return image_kernels(isa).cross_entropy(static_cast<std::int64_t>(z.size()), z.data(), target, 0, 1, nullptr);
    };
    EXPECT_TRUE(score({1, 3, 3, 0, 0, 0, 0}, 1).correct) << "the first of a tie, as argmax in PyTorch";
    EXPECT_FALSE(score({1, 3, 3, 0, 0, 0, 0}, 2).correct);
    EXPECT_FALSE(score({3, 2, 1, 0, 0, 0, 0}, 1).correct);
    EXPECT_TRUE(score({6, 5, 4, 3, 2, 2, 2, 2}, 4).correct5) << "four are larger";
    EXPECT_FALSE(score({6, 5, 4, 3, 2, 2, 2, 2}, 5).correct5);
    EXPECT_FALSE(score({6, 5, 4, 3, 2, 1, 0}, 5).correct5);
    EXPECT_TRUE(score({1, 2, 3}, 0).correct5) << "fewer classes than five";
    EXPECT_FALSE(score({NAN, 2, 3}, 0).correct);
    EXPECT_FALSE(std::isfinite(score({NAN, 2, 3}, 1).loss));
    std::vector<float> gradient(3, 7.0f);
    const std::vector<float> z = {1, 2, 3};
    const ClassScore ignored = image_kernels(isa).cross_entropy(3, z.data(), -1, 0.1, 1, gradient.data());
    EXPECT_EQ(ignored.loss, 0);
    EXPECT_FALSE(ignored.correct || ignored.correct5);
    EXPECT_EQ(gradient, std::vector<float>(3, 0.0f)) << isa_name(isa);
  }
}

TEST(ImageKernels, AModelThatSaysTheSameOfAllClassesIsRightAboutOneOfThem) {
  const std::vector<float> z(40, 0.25f);
  for (Isa isa : here()) {
    int correct = 0, correct5 = 0;
    for (std::int64_t target = 0; target < 40; ++target) {
      const ClassScore score = image_kernels(isa).cross_entropy(40, z.data(), target, 0, 1, nullptr);
      correct += score.correct;
      correct5 += score.correct5;
    }
    EXPECT_EQ(correct, 1) << isa_name(isa);
    EXPECT_EQ(correct5, 5) << isa_name(isa);
  }
}

TEST(ImageKernels, PixelsAreNormalisedIntoEitherLayout) {
  for (Isa isa : here()) {
    std::vector<float> table(3 * 256);
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i);
    const std::vector<std::uint8_t> from = {1, 2, 3, 4, 5, 255};
    std::vector<float> planes(6), last(6);
    image_kernels(isa).pixels(PixelRows<float>{2, 3, from.data(), table.data(), planes.data(), 1, 2});
    image_kernels(isa).pixels(PixelRows<float>{2, 3, from.data(), table.data(), last.data(), 3, 1});
    EXPECT_EQ(planes, (std::vector<float>{1, 4, 258, 261, 515, 767})) << isa_name(isa);
    EXPECT_EQ(last, (std::vector<float>{1, 258, 515, 4, 261, 767})) << isa_name(isa);
  }
}

}  // namespace
}  // namespace ringtrain::cpu
