#include "base/cat.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <random>
#include <sstream>

namespace ringtrain {
namespace {

template <class T>
std::string streamed(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

template <class T>
void expect_as_streamed(const T& value) {
  EXPECT_EQ(cat(value), streamed(value));
  EXPECT_EQ(cat("a ", value, ' ', std::string("b")), "a " + streamed(value) + " b");
}

TEST(Cat, PrintsWhatAStreamPrints) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t bits = random();
    expect_as_streamed(std::bit_cast<double>(bits));
    expect_as_streamed(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    expect_as_streamed(static_cast<double>(static_cast<std::int64_t>(bits % 2'000'001) - 1'000'000) / 8);
    expect_as_streamed(bits);
    expect_as_streamed(static_cast<std::int64_t>(bits));
    expect_as_streamed(static_cast<std::int32_t>(bits));
    expect_as_streamed(static_cast<std::int16_t>(bits));
    expect_as_streamed(static_cast<std::int8_t>(bits | 1));
  }
  for (const double value : {0.0, -0.0, 1e5, 999'999.5, 1e6, 1e-4, 1e-5, std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::denorm_min(), std::numeric_limits<double>::max()}) {
    expect_as_streamed(value);
    expect_as_streamed(-value);
    expect_as_streamed(static_cast<float>(value));
  }
  expect_as_streamed(std::numeric_limits<double>::quiet_NaN());
  expect_as_streamed(-std::numeric_limits<double>::quiet_NaN());
  expect_as_streamed(true);
  expect_as_streamed('c');
  expect_as_streamed("text");
  expect_as_streamed(std::string_view("text\0more", 9));
  expect_as_streamed(std::filesystem::path("a folder/a \"file\""));
  EXPECT_EQ(cat(), "");
  EXPECT_EQ(cat(std::hex, 255), "ff");
}

}  // namespace
}  // namespace ringtrain
