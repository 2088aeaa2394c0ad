// Compares the weight gradients of convolutions on small maps and on pixels with sums in double precision. oneDNN has
// no fast code for some of these shapes (ConvolutionPrimitives::make_backward_weights()).
#include "backend/cpu/convolution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/processor.h"
#include "base/error.h"

namespace ringtrain::cpu {
namespace {

constexpr std::int64_t images = 3, inputs = 24, outputs = 40;

struct Case {
  std::int64_t map, kernel, stride, padding;
  std::int64_t channels = inputs;
  bool pixels = false;  // whether the source has the layout of pixels
};

struct Aligned {
  explicit Aligned(std::int64_t bytes) : memory(static_cast<std::size_t>(bytes) + 64, 1) {}  // not zeros
  char* data() { return memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64; }
  std::vector<char> memory;
};

class ConvolutionWeights : public testing::TestWithParam<Case> {
 protected:
  ConvolutionShape shape(bool bias) const {
    const Case& c = GetParam();
    const std::int64_t out = (c.map + 2 * c.padding - c.kernel) / c.stride + 1;
    return {.input = c.channels,
            .output = outputs,
            .in_height = c.map,
            .in_width = c.map,
            .out_height = out,
            .out_width = out,
            .kernel = c.kernel,
            .stride = c.stride,
            .padding = c.padding,
            .bias = bias,
            .pixels = c.pixels,
            .lanes = norm_kernels(best_isa()).lanes};
  }
  // Returns the index of a value in oneDNN's blocked layout. After the last channel it has zeros.
  static std::size_t place(std::int64_t image, std::int64_t channel, std::int64_t pixel, std::int64_t channels,
                           std::int64_t pixels, int lanes) {
    const std::int64_t blocks = (channels + lanes - 1) / lanes;
    return static_cast<std::size_t>(((image * blocks + channel / lanes) * pixels + pixel) * lanes + channel % lanes);
  }
  static std::vector<float> random_map(std::int64_t channels, std::int64_t pixels, int lanes, unsigned seed) {
    std::vector<float> map(place(images, 0, 0, channels, pixels, lanes));
    std::mt19937 random(seed);
    for (std::int64_t n = 0; n < images; ++n)
      for (std::int64_t c = 0; c < channels; ++c)
        for (std::int64_t p = 0; p < pixels; ++p)
          map[place(n, c, p, channels, pixels, lanes)] = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
    return map;
  }
};

TEST_P(ConvolutionWeights, AreTheSumsOfTheProducts) {
  const ConvolutionShape s = shape(true);
  const std::int64_t in = s.in_height, out = s.out_height, k = s.kernel;
  // Pixels are in planes, as if a block had one channel.
  const int source_lanes = s.pixels ? 1 : s.lanes;
  const std::vector<float> x = random_map(s.input, in * in, source_lanes, 1),
                           dy = random_map(outputs, out * out, s.lanes, 2);
  ConvolutionPrimitives primitives(s, true, 2);
  primitives.make_forward(images);
  ASSERT_EQ(primitives.channel_stride(), in * in);
  primitives.make_backward_weights(images);
  if (!s.pixels) primitives.make_backward_data(images);
  if (best_isa() >= Isa::avx2) {
    EXPECT_TRUE(primitives.has_fast_code());
  }
  Aligned weights(primitives.weight_bytes()), scratch(primitives.weights_scratch_bytes());
  primitives.bind(weights.data());
  std::vector<float> gradient(static_cast<std::size_t>(outputs * s.input * k * k), 5.0f), bias(outputs, 5.0f);
  for (const bool accumulate : {false, true})
    primitives.backward_weights(image_kernels(best_isa()), x.data(), dy.data(), scratch.data(), gradient.data(),
                                bias.data(), accumulate);
  const double tolerance = 5e-6 * std::max(2.0, std::sqrt(static_cast<double>(images * out * out)));
  std::size_t at = 0;
  for (std::int64_t o = 0; o < outputs; ++o)
    for (std::int64_t i = 0; i < s.input; ++i)
      for (std::int64_t ky = 0; ky < k; ++ky)
        for (std::int64_t kx = 0; kx < k; ++kx, ++at) {
          double sum = 0;
          for (std::int64_t n = 0; n < images; ++n)
            for (std::int64_t p = 0; p < out * out; ++p) {
              const std::int64_t y = p / out * s.stride + ky - s.padding, z = p % out * s.stride + kx - s.padding;
              if (y < 0 || z < 0 || y >= in || z >= in) continue;
              sum += static_cast<double>(x[place(n, i, y * in + z, s.input, in * in, source_lanes)]) *
                     static_cast<double>(dy[place(n, o, p, outputs, out * out, s.lanes)]);
            }
          ASSERT_NEAR(gradient[at], 2 * sum, tolerance) << o << " " << i << " " << ky << " " << kx;
        }
  for (std::int64_t o = 0; o < outputs; ++o) {
    double sum = 0;
    for (std::int64_t n = 0; n < images; ++n)
      for (std::int64_t p = 0; p < out * out; ++p)
        sum += static_cast<double>(dy[place(n, o, p, outputs, out * out, s.lanes)]);
    EXPECT_NEAR(bias[static_cast<std::size_t>(o)], 2 * sum, tolerance);
  }
}

std::string name_of(const testing::TestParamInfo<Case>& test) {
  const Case& c = test.param;
  return cat("Map", c.map, "Kernel", c.kernel, "Stride", c.stride, "Channels", c.channels);
}

INSTANTIATE_TEST_SUITE_P(SmallMaps, ConvolutionWeights,
                         testing::Values(Case{1, 3, 1, 1}, Case{2, 3, 1, 1}, Case{2, 3, 2, 1}, Case{1, 3, 2, 1},
                                         Case{3, 5, 1, 2}, Case{4, 3, 1, 1}, Case{4, 1, 2, 0}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(FewChannels, ConvolutionWeights,
                         testing::Values(Case{14, 5, 1, 2, 6}, Case{14, 5, 1, 2, 1}, Case{28, 3, 2, 1, 4}), name_of);
INSTANTIATE_TEST_SUITE_P(Pixels, ConvolutionWeights,
                         testing::Values(Case{28, 5, 1, 2, 1, true}, Case{28, 5, 1, 2, 2, true},
                                         Case{28, 5, 1, 2, 3, true}, Case{32, 3, 1, 1, 1, true},
                                         Case{32, 3, 1, 1, 2, true}, Case{30, 7, 2, 3, 1, true}),
                         name_of);

}  // namespace
}  // namespace ringtrain::cpu
