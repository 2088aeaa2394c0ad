// Tests squared norms of ranges on the CPU's backend and on a device.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backend/cuda/backend.h"
#include "backend/vector_operations.h"
#include "base/error.h"
#include "base/random.h"
#include "tests/emulation/host_device.h"

namespace ringtrain {
namespace {

// All ranges but the last are tensors of odd sizes as the parameter table lays them out. One is so long that it is
// measured in several pieces. The last range overlaps another one.
const std::vector<ElementRange> norm_ranges = {{0, 1},         {64, 16449},    {16512, 16519},
                                               {16576, 70001}, {70016, 70019}, {3, 65}};
constexpr std::int64_t vector_elements = 70080;

// The padding is NaN, because nothing may read it.
std::vector<float> gradient() {
  std::vector<float> values(vector_elements, std::numeric_limits<float>::quiet_NaN());
  for (const ElementRange& range : norm_ranges)
    for (std::int64_t i = range.begin; i < range.end; ++i)
      values[static_cast<std::size_t>(i)] =
          static_cast<float>(random_normal(7, static_cast<std::uint64_t>(i)) * std::pow(10.0, i % 9 - 4));
  return values;
}

double expected_sum(const std::vector<float>& values, const ElementRange& range) {
  double sum = 0;
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const auto x = static_cast<double>(values[static_cast<std::size_t>(i)]);
    sum += x * x;
  }
  return sum;
}

std::vector<double> measured(Backend& backend, const std::vector<float>& values) {
  const auto vector = backend.make_vector(vector_elements);
  backend.copy_from_host(values, *vector, 0);
  const auto norms = backend.make_range_norms(norm_ranges);
  norms->measure(*vector);
  const auto result = norms->values();
  return {result.begin(), result.end()};
}

TEST(RangeNorms, AreTheSumsOfSquaresOfEachRangeOnTheCpuAndOnADevice) {
  const std::vector<float> values = gradient();
  cuda::HostDevice device;
  const auto cpu = measured(*make_cpu_backend(1), values), gpu = measured(*cuda::make_backend(device, {}), values);
  for (std::size_t i = 0; i < norm_ranges.size(); ++i) {
    const double sum = expected_sum(values, norm_ranges[i]);
    EXPECT_NEAR(cpu[i], sum, 1e-12 * sum) << i;
    EXPECT_NEAR(gpu[i], sum, 1e-12 * sum) << i;
    EXPECT_NEAR(cpu[i], gpu[i], 1e-12 * sum) << i;
  }
}

TEST(RangeNorms, HaveTheSameBitsEachTimeAndWithAnyNumberOfThreads) {
  const std::vector<float> values = gradient();
  const std::vector<double> one = measured(*make_cpu_backend(1), values);
  for (const int threads : {1, 2, 3}) EXPECT_EQ(measured(*make_cpu_backend(threads), values), one) << threads;
  std::vector<double> first;
  for (const cuda::RunOrder::Kind order : {cuda::RunOrder::Kind::latest, cuda::RunOrder::Kind::random}) {
    cuda::HostDevice device({.order = {order, 3}});
    const auto again = measured(*cuda::make_backend(device, {}), values);
    if (first.empty()) first = again;
    EXPECT_EQ(again, first);
  }
}

TEST(RangeNorms, AnInfinityOrNaNShowsInItsOwnRangeOnly) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values = gradient();
    values[16580] = bad;
    cuda::HostDevice device;
    for (const auto& norms :
         {measured(*make_cpu_backend(2), values), measured(*cuda::make_backend(device, {}), values)})
      for (std::size_t i = 0; i < norm_ranges.size(); ++i) EXPECT_EQ(std::isfinite(norms[i]), i != 3) << i;
  }
}

// The noise scale needs the norm of a rank's own bucket. It is measured in the stream that sums the bucket, before the
// sum.
TEST(RangeNorms, ABucketIsMeasuredInItsStreamBeforeItsSum) {
  cuda::HostDevice device({.order = {cuda::RunOrder::Kind::latest, 0}});
  const auto backend = cuda::make_backend(device, {});
  const auto vector = backend->make_vector(vector_elements);
  std::vector<float> values = gradient();
  backend->copy_from_host(values, *vector, 0);
  const std::vector<ElementRange> bucket = {norm_ranges[1], norm_ranges[3]};
  const auto norms = backend->make_range_norms(bucket);
  const cuda::Stream stream = device.make_stream(true);
  const cuda::Event ready = device.make_event();
  device.record(ready, device.compute_stream());
  device.wait(stream, ready);
  device.clear_calls();
  norms->measure(*vector, stream.handle);
  norms->fetch();
  device.zero(vector->data(), vector_elements * 4, stream);  // stands for the sum, which overwrites the bucket
  for (const cuda::Call& call : device.calls()) EXPECT_EQ(call.stream, stream.handle - 1) << call.name;
  for (std::size_t i = 0; i < 2; ++i) {
    const double sum = expected_sum(values, bucket[i]);
    EXPECT_NEAR(norms->values()[i], sum, 1e-12 * sum);
  }
}

TEST(RangeNorms, MeasuringQueuesTwoKernelsWhateverTheNumberOfRangesAndWaitsForNothing) {
  cuda::HostDevice device({.order = {cuda::RunOrder::Kind::latest, 0}});
  const auto backend = cuda::make_backend(device, {});
  const auto vector = backend->make_vector(vector_elements);
  const auto norms = backend->make_range_norms(norm_ranges);
  device.clear_calls();
  norms->measure(*vector);
  std::vector<std::string> kernels;
  for (const cuda::Call& call : device.calls())
    if (call.kind == cuda::Call::Kind::kernel) kernels.push_back(call.name);
  EXPECT_EQ(kernels, (std::vector<std::string>{"squared_norm_parts", "squared_norms"}));
}

// The gradient grows from pass to pass. The norms of what each pass adds are summed over all passes.
TEST(RangeNorms, ChangesAddUpAndLeaveTheValuesBehind) {
  const std::vector<ElementRange> apart(norm_ranges.begin(), norm_ranges.end() - 1);  // these do not overlap
  for (const bool on_device : {false, true}) {
    cuda::HostDevice device({.order = {cuda::RunOrder::Kind::latest, 0}});
    const auto backend = on_device ? cuda::make_backend(device, {}) : make_cpu_backend(2);
    const auto vector = backend->make_vector(vector_elements), before = backend->make_vector(vector_elements);
    const auto norms = backend->make_range_norms(apart);
    for (int step = 0; step < 2; ++step) {  // the second step forgets the first
      std::vector<double> sums(apart.size(), 0.0);
      std::vector<float> values(vector_elements, 0.0f), then = values;
      for (int pass = 0; pass < 3; ++pass) {
        then = values;
        for (std::int64_t i = 0; i < vector_elements; ++i)
          values[static_cast<std::size_t>(i)] += static_cast<float>(
              random_normal(static_cast<std::uint64_t>(9 * step + pass), static_cast<std::uint64_t>(i)));
        for (std::size_t r = 0; r < apart.size(); ++r)
          for (auto i = static_cast<std::size_t>(apart[r].begin); i < static_cast<std::size_t>(apart[r].end); ++i)
            sums[r] += std::pow(static_cast<double>(values[i] - then[i]), 2);
        backend->copy_from_host(values, *vector, 0);
        norms->measure_change(*vector, *before, pass == 0);
      }
      for (std::size_t r = 0; r < apart.size(); ++r) EXPECT_NEAR(norms->values()[r], sums[r], 1e-12 * sums[r]) << r;
      std::vector<float> kept(vector_elements);
      backend->copy_to_host(*before, 0, kept);
      for (const ElementRange& range : apart)
        EXPECT_TRUE(std::equal(kept.begin() + range.begin, kept.begin() + range.end, values.begin() + range.begin));
      EXPECT_EQ(kept[1], 0) << "outside the ranges";
    }
  }
}

TEST(RangeNorms, RangesThatAreEmptyOrBeyondTheVectorAreErrors) {
  cuda::HostDevice device;
  const auto cpu = make_cpu_backend(1), gpu = cuda::make_backend(device, {});
  for (Backend* backend : {cpu.get(), gpu.get()}) {
    for (const ElementRange& bad : {ElementRange{5, 5}, ElementRange{6, 5}, ElementRange{-1, 5}})
      EXPECT_THROW(backend->make_range_norms({&bad, 1}), Error);
    EXPECT_THROW(backend->make_range_norms({}), Error);
    const auto vector = backend->make_vector(64);
    const ElementRange beyond{0, 65};
    const auto norms = backend->make_range_norms({&beyond, 1});
    EXPECT_THROW(norms->measure(*vector), Error);
  }
}

}  // namespace
}  // namespace ringtrain
