// Compares the GPU's kernels for pooling and flattening with loops.
#include "cuda_kernels.h"

namespace ringtrain::cuda {
namespace {

struct Window {
  int height, width, kernel, stride, padding;
  int out_height() const { return (height + 2 * padding - kernel) / stride + 1; }
  int out_width() const { return (width + 2 * padding - kernel) / stride + 1; }
};
std::ostream& operator<<(std::ostream& out, const Window& w) {
  return out << w.height << " x " << w.width << ", window " << w.kernel << ", stride " << w.stride << ", padding "
             << w.padding;
}
const Window windows[] = {{1, 1, 1, 1, 0}, {12, 9, 3, 2, 1}, {7, 7, 3, 2, 0}, {5, 6, 2, 2, 0}, {9, 4, 4, 1, 2}};

PoolArguments arguments(const Window& w, std::int64_t samples, int channels) {
  PoolArguments a{};
  a.samples = samples;
  a.height = w.height;
  a.width = w.width;
  a.out_height = w.out_height();
  a.out_width = w.out_width();
  a.channels = channels;
  a.kernel = w.kernel;
  a.stride = w.stride;
  a.padding = w.padding;
  return a;
}

// The largest value and its place, as PyTorch chooses them. The first of equal values wins. A NaN wins and stays until
// the next NaN.
struct Winner {
  double value;
  int place;
};
Winner winner(const Array& x, const PoolArguments& a, std::int64_t image, int i, int j, int c) {
  Winner best{-INFINITY, -1};
  for (int r = 0; r < a.kernel; ++r)
    for (int s = 0; s < a.kernel; ++s) {
      const int row = i * a.stride - a.padding + r, column = j * a.stride - a.padding + s;
      if (row < 0 || row >= a.height || column < 0 || column >= a.width) continue;
      const double v = x[((image * a.height + row) * a.width + column) * a.channels + c];
      if (v > best.value || std::isnan(v) || best.place < 0) best = {v, r * a.kernel + s};
    }
  return best;
}

TEST(CudaKernelsPool, MaximaAndTheirPlacesAreThoseOfTheFirstWinner) {
  for (const Type type : all_types)
    for (const Window& w : windows)
      for (const int channels : {3, 8, 17, 64}) {
        SCOPED_TRACE(testing::Message() << type_name(type) << ", " << w << ", " << channels << " channels");
        TestMemory memory;
        PoolArguments a = arguments(w, 2, channels);
        const Array x = memory.array(type, a.samples * a.height * a.width * channels);
        // There are few different values, so nearly every window has ties.
        for (std::int64_t i = 0; i < x.count; ++i)
          x.set(i, std::round(random_normal(1, static_cast<std::uint64_t>(i))));
        x.set(0, NAN);
        x.set(x.count - 1, -INFINITY);
        const std::int64_t outputs = a.samples * a.out_height * a.out_width * channels;
        const Array y = memory.array(type, outputs);
        a.x = x.data;
        a.y = y.data;
        a.places = memory.make<std::uint8_t>(outputs);
        ASSERT_NO_FATAL_FAILURE(memory.run(launch_of(type, Kernel::max_pool, a)));
        std::int64_t at = 0;
        for (std::int64_t n = 0; n < a.samples; ++n)
          for (int i = 0; i < a.out_height; ++i)
            for (int j = 0; j < a.out_width; ++j)
              for (int c = 0; c < channels; ++c, ++at) {
                const Winner expected = winner(x, a, n, i, j, c);
                ASSERT_EQ(int{a.places[at]}, expected.place) << i << " " << j << " " << c;
                ASSERT_TRUE(y[at] == expected.value || (std::isnan(y[at]) && std::isnan(expected.value)));
              }
      }
}

TEST(CudaKernelsPool, InferenceKeepsNoPlaces) {
  TestMemory memory;
  PoolArguments a = arguments({4, 4, 2, 2, 0}, 1, 8);
  a.x = memory.array(Type::bf16, 4 * 4 * 8).normal(1).data;
  const Array y = memory.array(Type::bf16, 2 * 2 * 8);
  a.y = y.data;
  ASSERT_NO_FATAL_FAILURE(memory.run(launch_of(Type::bf16, Kernel::max_pool, a)));
  EXPECT_FALSE(std::isnan(y[31]));
}

TEST(CudaKernelsPool, EveryGradientReachesItsWinner) {
  for (const Type type : all_types)
    for (const Window& w : windows)
      for (const int channels : {3, 8, 17, 64}) {
        SCOPED_TRACE(testing::Message() << type_name(type) << ", " << w << ", " << channels << " channels");
        TestMemory memory;
        PoolArguments a = arguments(w, 3, channels);
        const std::int64_t inputs = a.samples * a.height * a.width * channels;
        const std::int64_t outputs = a.samples * a.out_height * a.out_width * channels;
        const Array x = memory.array(type, inputs).normal(1), dy = memory.array(type, outputs).normal(2);
        const Array dx = memory.array(type, inputs);
        a.x = dy.data;
        a.y = dx.data;
        a.places = memory.make<std::uint8_t>(outputs);
        std::vector<double> expected(static_cast<std::size_t>(inputs));
        std::int64_t at = 0;
        for (std::int64_t n = 0; n < a.samples; ++n)
          for (int i = 0; i < a.out_height; ++i)
            for (int j = 0; j < a.out_width; ++j)
              for (int c = 0; c < channels; ++c, ++at) {
                const int place = winner(x, a, n, i, j, c).place;
                a.places[at] = static_cast<std::uint8_t>(place);
                const int row = i * a.stride - a.padding + place / a.kernel;
                const int column = j * a.stride - a.padding + place % a.kernel;
                expected[static_cast<std::size_t>(((n * a.height + row) * a.width + column) * channels + c)] += dy[at];
              }
        ASSERT_NO_FATAL_FAILURE(memory.run(launch_of(type, Kernel::max_pool_backward, a)));
        for (std::int64_t i = 0; i < inputs; ++i) {
          const double e = expected[static_cast<std::size_t>(i)];
          ASSERT_NEAR(dx[i], e, tolerance(type, e)) << i;
        }
      }
}

TEST(CudaKernelsPool, AverageAndItsGradientAreThoseOfAllPixels) {
  for (const Type type : all_types)
    for (const int channels : {3, 8, 17, 2048})
      for (const std::int64_t samples : {1, 5}) {
        SCOPED_TRACE(testing::Message() << type_name(type) << ", " << channels << " channels");
        TestMemory memory;
        PoolArguments a = arguments({7, 7, 7, 1, 0}, samples, channels);
        const Array x = memory.array(type, samples * 49 * channels).normal(1, 1, 1);
        const Array y = memory.array(type, samples * channels);
        a.x = x.data;
        a.y = y.data;
        ASSERT_NO_FATAL_FAILURE(memory.run(launch_of(type, Kernel::average_pool, a)));
        for (std::int64_t n = 0; n < samples; ++n)
          for (int c = 0; c < channels; ++c) {
            double sum = 0;
            for (int p = 0; p < 49; ++p) sum += x[(n * 49 + p) * channels + c];
            ASSERT_NEAR(y[n * channels + c], sum / 49, tolerance(type, sum / 49)) << n << " " << c;
          }
        a.x = y.data;
        a.y = x.data;
        ASSERT_NO_FATAL_FAILURE(memory.run(launch_of(type, Kernel::average_pool_backward, a)));
        for (std::int64_t i = 0; i < x.count; ++i) {
          const double e = y[i / (49 * channels) * channels + i % channels] / 49;
          ASSERT_NEAR(x[i], e, tolerance(type, e)) << i;
        }
      }
}

TEST(CudaKernelsPool, FlatteningIsPyTorchsAndItsInverseTheWayBack) {
  for (const Type type : all_types)
    for (const int spatial : {1, 36, 49})
      for (const int channels : {3, 32, 70}) {
        SCOPED_TRACE(testing::Message() << type_name(type) << ", " << spatial << " x " << channels);
        TestMemory memory;
        const std::int64_t samples = 3, n = samples * spatial * channels;
        const Array from = memory.array(type, n).normal(1), to = memory.array(type, n), back = memory.array(type, n);
        ASSERT_NO_FATAL_FAILURE(
            memory.run(launch_of(type, ReorderArguments{from.data, to.data, samples, spatial, channels, false})));
        for (std::int64_t i = 0; i < samples; ++i)
          for (int p = 0; p < spatial; ++p)
            for (int c = 0; c < channels; ++c)
              ASSERT_EQ(to[(i * channels + c) * spatial + p], from[(i * spatial + p) * channels + c]);
        ASSERT_NO_FATAL_FAILURE(
            memory.run(launch_of(type, ReorderArguments{to.data, back.data, samples, spatial, channels, true})));
        for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(back[i], from[i]);
      }
}

}  // namespace
}  // namespace ringtrain::cuda
