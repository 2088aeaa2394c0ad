// Tests the numbers on which work is timed.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/cuda/device/device.h"
#include "base/small_floats.h"
#include "tests/emulation/host_device.h"

namespace ringtrain::cuda {
namespace {

double value_at(const std::byte* memory, Type type, std::size_t i) {
  float value = 0;
  std::uint16_t half = 0;
  if (type == Type::fp32) {
    std::memcpy(&value, memory + 4 * i, 4);
    return value;
  }
  std::memcpy(&half, memory + 2 * i, 2);
  return type == Type::bf16 ? from_bf16(half) : from_fp16(half);
}

// The sizes are smaller than a block, a few bytes longer than blocks, and odd.
TEST(CudaRandomMemory, IsFiniteAndNormallyDistributedInEveryTypeUpToItsLastByte) {
  for (const Type type : {Type::fp32, Type::bf16, Type::fp16})
    for (const std::int64_t bytes : {std::int64_t{4096}, (std::int64_t{5} << 20) + 12, std::int64_t{100001}}) {
      HostDevice device;
      const DeviceMemory memory(device, bytes, "numbers");
      fill_random(device, memory.data(), bytes, type, device.compute_stream());
      device.finish_all();
      device.check_guards();
      const auto count = static_cast<std::size_t>(bytes / bytes_of(type));
      double sum = 0, squares = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const double value = value_at(memory.data<std::byte>(), type, i);
        ASSERT_TRUE(std::isfinite(value)) << type_name(type) << ", number " << i << " of " << count;
        sum += value;
        squares += value * value;
      }
      const double mean = sum / static_cast<double>(count);
      EXPECT_NEAR(mean, 0, 0.02) << type_name(type) << ", " << bytes << " bytes";
      EXPECT_NEAR(std::sqrt(squares / static_cast<double>(count)), 0.125, 0.01) << type_name(type) << ", " << bytes;
      EXPECT_NE(value_at(memory.data<std::byte>(), type, count - 1), 0);
      for (std::size_t i = 0; i < static_cast<std::size_t>(bytes / 4); ++i)
        ASSERT_TRUE(std::isfinite(value_at(memory.data<std::byte>(), Type::fp32, i))) << type_name(type) << " as fp32";
    }
}

}  // namespace
}  // namespace ringtrain::cuda
