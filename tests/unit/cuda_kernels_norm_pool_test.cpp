// Compares the kernel that does norm, ReLU and max pooling with the separate kernels and with loops.
#include "backend/cuda/kernels/tiles.h"
#include "cuda_kernels.h"

namespace ringtrain::cuda {
namespace {

PoolWindow window(int height, int width, int kernel, int stride, int padding) {
  return {
      height, width,  (height + 2 * padding - kernel) / stride + 1, (width + 2 * padding - kernel) / stride + 1, kernel,
      stride, padding};
}
const PoolWindow windows[] = {window(1, 1, 1, 1, 0),  window(12, 9, 3, 2, 1), window(7, 7, 3, 2, 0),
                              window(6, 6, 2, 2, 0),  window(9, 4, 4, 1, 2),  window(16, 15, 15, 1, 0),
                              window(12, 10, 3, 2, 1)};

struct Case {
  Type type;
  PoolWindow w;
  int channels, groups;
  std::int64_t samples, rows, pooled;  // rows of a group, elements of the pooled map
};
void for_all(const std::function<void(const Case&)>& body) {
  for (const Type type : all_types)
    for (const PoolWindow& w : windows)
      for (const int channels : {3, 8, 17, 64})
        for (const int groups : {1, 3}) {
          SCOPED_TRACE(testing::Message() << type_name(type) << ", " << w.height << " x " << w.width << ", window "
                                          << w.kernel << ", " << channels << " channels, " << groups << " groups");
          const std::int64_t samples = 2 * groups;
          body({type, w, channels, groups, samples, 2 * std::int64_t{w.height} * w.width,
                samples * w.out_height * w.out_width * channels});
          if (testing::Test::HasFatalFailure()) return;
        }
}

PoolArguments separate(const Case& k) {
  PoolArguments a{};
  a.samples = k.samples;
  a.height = k.w.height;
  a.width = k.w.width;
  a.out_height = k.w.out_height;
  a.out_width = k.w.out_width;
  a.channels = k.channels;
  a.kernel = k.w.kernel;
  a.stride = k.w.stride;
  a.padding = k.w.padding;
  return a;
}

TEST(CudaKernelsNormPool, ForwardIsThatOfNormReluAndPoolingBitForBit) {
  for_all([](const Case& k) {
    TestMemory memory;
    const std::int64_t elements = k.groups * k.rows * k.channels,
                       mask_bytes = k.groups * k.rows * octets_of(k.channels);
    const Array x = memory.array(k.type, elements);
    // With one group the map has few different values, so nearly every window has ties. Some windows have no positive
    // value.
    for (std::int64_t i = 0; i < elements; ++i) x.set(i, std::round(random_normal(1, static_cast<std::uint64_t>(i))));
    if (k.groups > 1) x.normal(1, 0.1);
    x.set(0, NAN);
    x.set(elements - 1, -INFINITY);
    const Array scale = memory.array(Type::fp32, k.groups * k.channels).normal(2, 0.5, 1),
                bias = memory.array(Type::fp32, k.groups * k.channels).normal(3, 0.5, -0.7);
    // With three groups some values become equal when they are rounded to 16 bits.
    if (k.groups > 1)
      for (std::int64_t i = 0; i < bias.count; i += 2) bias.set(i, 60 + bias[i]);
    const Array map = memory.array(k.type, elements), y = memory.array(k.type, k.pooled),
                expected = memory.array(k.type, k.pooled);
    auto *mask = memory.make<std::uint8_t>(mask_bytes), *places = memory.make<std::uint8_t>(k.pooled),
         *expected_places = memory.make<std::uint8_t>(k.pooled);
    memory.run_once(launch_of(k.type, NormApplyArguments{x.data, nullptr, scale.floats(), bias.floats(), nullptr,
                                                         nullptr, map.data, mask, k.rows, k.groups, k.channels, true}));
    PoolArguments pool = separate(k);
    pool.x = map.data;
    pool.y = expected.data;
    pool.places = expected_places;
    memory.run_once(launch_of(k.type, Kernel::max_pool, pool));
    NormPoolArguments a{x.data, scale.floats(), bias.floats(), y.data, places, k.samples, 2, k.channels, k.w};
    ASSERT_NO_FATAL_FAILURE(memory.run(launch_of(k.type, a)));
    ASSERT_EQ(std::memcmp(y.data, expected.data, static_cast<std::size_t>(k.pooled * bytes_of(k.type))), 0);
    std::int64_t at = 0, stopped = 0;
    for (std::int64_t n = 0; n < k.samples; ++n)
      for (int i = 0; i < k.w.out_height; ++i)
        for (int j = 0; j < k.w.out_width; ++j)
          for (int c = 0; c < k.channels; ++c, ++at) {
            const int place = expected_places[at], row = i * k.w.stride - k.w.padding + place / k.w.kernel,
                      column = j * k.w.stride - k.w.padding + place % k.w.kernel;
            const bool passed = bit(mask, (n * k.w.height + row) * k.w.width + column, k.channels, c);
            stopped += !passed;
            ASSERT_EQ(int{places[at]}, passed ? place : int{no_gradient}) << n << " " << i << " " << j << " " << c;
          }
    EXPECT_GT(stopped, 0);
    // Inference keeps no places. Its result must be the same.
    const Array again = memory.array(k.type, k.pooled);
    a.y = again.data;
    a.places = nullptr;
    memory.run_once(launch_of(k.type, a));
    ASSERT_EQ(std::memcmp(again.data, expected.data, static_cast<std::size_t>(k.pooled * bytes_of(k.type))), 0);
  });
}

// The places lie inside the image, or say that there is no gradient.
struct Backward {
  TestMemory memory;
  Array dy, x;
  std::uint8_t* places;
  std::vector<double> dr;  // computed by scattering
  explicit Backward(const Case& k)
      : dy(memory.array(k.type, k.pooled).normal(1)),
        x(memory.array(k.type, k.groups * k.rows * k.channels).normal(2)),
        places(memory.make<std::uint8_t>(k.pooled)),
        dr(static_cast<std::size_t>(x.count)) {
    std::int64_t at = 0;
    for (std::int64_t n = 0; n < k.samples; ++n)
      for (int i = 0; i < k.w.out_height; ++i)
        for (int j = 0; j < k.w.out_width; ++j)
          for (int c = 0; c < k.channels; ++c, ++at) {
            places[at] = no_gradient;
            const auto draw = static_cast<int>(1000 * random_uniform(3, static_cast<std::uint64_t>(at)));
            const int place = draw % (k.w.kernel * k.w.kernel + 1);
            const int row = i * k.w.stride - k.w.padding + place / k.w.kernel,
                      column = j * k.w.stride - k.w.padding + place % k.w.kernel;
            if (place == k.w.kernel * k.w.kernel || row < 0 || row >= k.w.height || column < 0 || column >= k.w.width)
              continue;
            places[at] = static_cast<std::uint8_t>(place);
            dr[static_cast<std::size_t>(((n * k.w.height + row) * k.w.width + column) * k.channels + c)] += dy[at];
          }
  }
};

TEST(CudaKernelsNormPool, SumsOfTheBackwardPassMatchDoublePrecision) {
  for_all([](const Case& k) {
    Backward b(k);
    const int blocks = norm_blocks({}, Kernel::norm_pool_backward_sums, k.type, k.rows, k.groups, k.channels);
    const Array partial = b.memory.array(Type::fp32, std::int64_t{2} * k.groups * blocks * k.channels);
    ASSERT_NO_FATAL_FAILURE(
        b.memory.run(launch_of(k.type, NormPoolBackwardSumsArguments{b.dy.data, b.x.data, b.places, partial.floats(),
                                                                     k.rows, k.groups, k.channels, blocks, k.w})));
    for (int g = 0; g < k.groups; ++g)
      for (int c = 0; c < k.channels; ++c) {
        double expected[2] = {}, found[2] = {};
        for (std::int64_t r = g * k.rows; r < (g + 1) * k.rows; ++r) {
          const double d = b.dr[static_cast<std::size_t>(r * k.channels + c)];
          expected[0] += d;
          expected[1] += d * b.x[r * k.channels + c];
        }
        for (int i = 0; i < 2; ++i) {
          for (int block = 0; block < blocks; ++block)
            found[i] += partial[((std::int64_t{g} * blocks + block) * 2 + i) * k.channels + c];
          ASSERT_NEAR(found[i], expected[i],
                      tolerance(Type::fp32, expected[i], 2 * std::sqrt(static_cast<double>(k.rows)) + 1))
              << g << " " << c << " " << i;
        }
      }
  });
}

TEST(CudaKernelsNormPool, TheGradientMatchesDoublePrecision) {
  for_all([](const Case& k) {
    Backward b(k);
    const std::int64_t each = std::int64_t{k.groups} * k.channels;
    const Array slopes[] = {b.memory.array(Type::fp32, each).normal(4), b.memory.array(Type::fp32, each).normal(5),
                            b.memory.array(Type::fp32, each).normal(6)};
    const Array dx = b.memory.array(k.type, b.x.count);
    ASSERT_NO_FATAL_FAILURE(b.memory.run(launch_of(
        k.type, NormPoolBackwardApplyArguments{b.dy.data, b.x.data, b.places, slopes[0].floats(), slopes[1].floats(),
                                               slopes[2].floats(), dx.data, k.rows, k.groups, k.channels, k.w})));
    for (std::int64_t r = 0; r < k.groups * k.rows; ++r)
      for (int c = 0; c < k.channels; ++c) {
        const std::int64_t at = r * k.channels + c, affine = r / k.rows * k.channels + c;
        const double expected =
            slopes[0][affine] * b.dr[static_cast<std::size_t>(at)] + slopes[1][affine] * b.x[at] + slopes[2][affine];
        ASSERT_NEAR(dx[at], expected, tolerance(k.type, expected, 20)) << r << " " << c;
      }
  });
}

// In fp32 nothing is rounded between the separate kernels, and all kernels add in the same order.
TEST(CudaKernelsNormPool, InFp32TheBackwardPassIsThatOfPoolingAndNormBitForBit) {
  const Case k{Type::fp32, window(28, 30, 3, 2, 1), 72, 2, 4, 2 * 28 * 30, std::int64_t{4} * 14 * 15 * 72};
  Backward b(k);
  const std::int64_t each = std::int64_t{k.groups} * k.channels;
  const int blocks = norm_blocks({}, Kernel::norm_pool_backward_sums, k.type, k.rows, k.groups, k.channels);
  ASSERT_GT(blocks, 1);
  const std::int64_t partials = 2 * each * blocks;
  const Array dr = b.memory.array(k.type, b.x.count), dx = b.memory.array(k.type, b.x.count),
              expected_dx = b.memory.array(k.type, b.x.count), partial = b.memory.array(k.type, partials),
              expected_partial = b.memory.array(k.type, partials),
              slopes = b.memory.array(Type::fp32, 3 * each).normal(4);
  const float *sa = slopes.floats(), *sb = sa + each, *sc = sb + each;
  PoolArguments pool = separate(k);
  pool.x = b.dy.data;
  pool.y = dr.data;
  pool.places = b.places;
  b.memory.run_once(launch_of(k.type, Kernel::max_pool_backward, pool));
  b.memory.run_once(
      launch_of(k.type, NormBackwardSumsArguments{dr.data, b.x.data, nullptr, nullptr, expected_partial.floats(),
                                                  k.rows, k.groups, k.channels, blocks}));
  b.memory.run_once(launch_of(
      k.type, NormBackwardApplyArguments{dr.data, b.x.data, nullptr, nullptr, sa, sb, sc, nullptr, nullptr, nullptr,
                                         expected_dx.data, nullptr, nullptr, k.rows, k.groups, k.channels}));
  b.memory.run_once(launch_of(k.type, NormPoolBackwardSumsArguments{b.dy.data, b.x.data, b.places, partial.floats(),
                                                                    k.rows, k.groups, k.channels, blocks, k.w}));
  b.memory.run_once(launch_of(k.type, NormPoolBackwardApplyArguments{b.dy.data, b.x.data, b.places, sa, sb, sc, dx.data,
                                                                     k.rows, k.groups, k.channels, k.w}));
  EXPECT_EQ(std::memcmp(partial.data, expected_partial.data, static_cast<std::size_t>(4 * partials)), 0);
  EXPECT_EQ(std::memcmp(dx.data, expected_dx.data, static_cast<std::size_t>(4 * dx.count)), 0);
}

}  // namespace
}  // namespace ringtrain::cuda
