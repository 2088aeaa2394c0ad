// Tests checksums of ranges on the CPU's backend and on a device.
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "backend/cuda/backend.h"
#include "backend/vector_operations.h"
#include "base/error.h"
#include "base/random.h"
#include "tests/emulation/host_device.h"

namespace ringtrain {
namespace {

// Tensors with their padding. Three are short. One is longer than several blocks of a device, and longer than a piece
// that one thread of the CPU takes.
const std::vector<ElementRange> checksum_ranges = {{0, 64}, {64, 128}, {128, 150016}, {150016, 150080}};
constexpr std::int64_t summed_elements = 150080;

std::vector<float> numbers(std::uint64_t key) {
  std::vector<float> values(summed_elements);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(random_normal(key, i));
  values[70] = std::numeric_limits<float>::quiet_NaN();
  values[71] = -0.0f;
  return values;
}

using Values = std::vector<std::vector<float>>;  // one array per vector
std::vector<std::uint64_t> measured(Backend& backend, const Values& all) {
  std::vector<std::unique_ptr<Vector>> vectors;
  std::vector<ChecksumRange> of_all;
  for (const std::vector<float>& values : all) {
    vectors.push_back(backend.make_vector(summed_elements));
    backend.copy_from_host(values, *vectors.back(), 0);
    for (const ElementRange& range : checksum_ranges) of_all.push_back({vectors.back().get(), range.begin, range.end});
  }
  const auto checksums = backend.make_checksums(of_all);
  checksums->start();
  const auto first = checksums->values();
  const std::vector<std::uint64_t> result(first.begin(), first.end());
  checksums->start();  // a second start must give the same
  EXPECT_TRUE(std::ranges::equal(checksums->values(), result));
  return result;
}

// Computes the formula of nn/math.h with code of its own, word by word. A word has two elements.
std::uint64_t expected_checksum(const std::vector<float>& values, const ElementRange& range) {
  std::uint64_t sum = 0;
  for (std::int64_t i = range.begin; i < range.end; i += 2) {
    const auto bits = [&](std::int64_t at) {
      return std::bit_cast<std::uint32_t>(values[static_cast<std::size_t>(at)]);
    };
    std::uint64_t x = bits(i) + (std::uint64_t{bits(i + 1)} << 32);
    x ^= static_cast<std::uint64_t>(i / 2) * 11400714819323198485u;
    x ^= x >> 33, x *= 18397679294719823053u, x ^= x >> 33, x *= 14181476777654086739u, x ^= x >> 33;
    sum += x;
  }
  return sum;
}

TEST(Checksums, AreThoseOfTheFormulaOnAnyNumberOfThreadsAndOnADevice) {
  const Values all = {numbers(1), numbers(2)};
  std::vector<std::uint64_t> sums;
  for (const std::vector<float>& values : all)
    for (const ElementRange& range : checksum_ranges) sums.push_back(expected_checksum(values, range));
  for (const int threads : {1, 2, 3}) EXPECT_EQ(measured(*make_cpu_backend(threads), all), sums) << threads;
  for (const cuda::RunOrder::Kind order : {cuda::RunOrder::Kind::latest, cuda::RunOrder::Kind::random}) {
    cuda::HostDevice device({.order = {order, 3}});
    EXPECT_EQ(measured(*cuda::make_backend(device, {}), all), sums);
  }
}

TEST(Checksums, AFlippedBitShowsInItsOwnRangeWhicheverItIs) {
  const auto backend = make_cpu_backend(1);
  const std::vector<float> values = numbers(5);
  const std::vector<std::uint64_t> before = measured(*backend, {values});
  for (const std::size_t at : {std::size_t{0}, std::size_t{63}, std::size_t{70}, std::size_t{71}, std::size_t{99999}})
    for (int bit = 0; bit < 32; bit += at == 71 ? 1 : 5) {
      std::vector<float> changed = values;
      changed[at] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(values[at]) ^ (1u << bit));
      const std::vector<std::uint64_t> after = measured(*backend, {changed});
      for (std::size_t i = 0; i < checksum_ranges.size(); ++i) {
        const bool inside = static_cast<std::int64_t>(at) >= checksum_ranges[i].begin &&
                            static_cast<std::int64_t>(at) < checksum_ranges[i].end;
        EXPECT_EQ(after[i] != before[i], inside) << at << " " << bit << " " << i;
      }
    }
}

TEST(Checksums, ValuesThatChangePlacesShow) {
  const auto backend = make_cpu_backend(1);
  std::vector<float> values = numbers(6);
  const std::vector<std::uint64_t> before = measured(*backend, {values});
  std::swap_ranges(values.begin() + 200, values.begin() + 264, values.begin() + 1000);
  EXPECT_NE(measured(*backend, {values})[2], before[2]);
}

TEST(Checksums, ADeviceQueuesAKernelForEachVectorAndTheHostDoesNotWait) {
  cuda::HostDevice device({.order = {cuda::RunOrder::Kind::latest, 0}});
  const auto backend = cuda::make_backend(device, {});
  const auto a = backend->make_vector(summed_elements), b = backend->make_vector(summed_elements);
  const auto checksums = backend->make_checksums(
      std::vector<ChecksumRange>{{a.get(), 0, 64}, {a.get(), 64, summed_elements}, {b.get(), 0, summed_elements}});
  device.clear_calls();
  checksums->start();
  std::vector<std::string> calls;
  for (const cuda::Call& call : device.calls())
    if (call.kind == cuda::Call::Kind::kernel) calls.push_back(call.name);
  EXPECT_EQ(calls, (std::vector<std::string>{"checksum_parts", "checksum_parts"}));
}

TEST(Checksums, OddRangesAndThoseBeyondTheVectorAreErrors) {
  const auto backend = make_cpu_backend(1);
  const auto vector = backend->make_vector(64);
  for (const ElementRange& bad : {ElementRange{1, 4}, ElementRange{0, 3}, ElementRange{0, 66}, ElementRange{-2, 4}})
    EXPECT_THROW(backend->make_checksums(std::vector<ChecksumRange>{{vector.get(), bad.begin, bad.end}}), Error);
}

}  // namespace
}  // namespace ringtrain
