// Tests the reader and writer of safetensors with files of the format's own library (golden files), and with files that
// are damaged in every way that we know.
#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>

#include "base/small_floats.h"
#include "checkpoint/weights_file.h"
#include "tests/unit/repository.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

class SafetensorsTest : public WithFolder {
 protected:
  // Writes a file with this header and `bytes` zeros after it.
  std::string file(const std::string& header, std::size_t bytes) const {
    const std::uint64_t length = header.size();
    std::string text(sizeof length, '\0');
    std::memcpy(text.data(), &length, sizeof length);
    return raw(text + header + std::string(bytes, '\0'));
  }
  std::string raw(const std::string& content) const {
    std::ofstream(path("file.safetensors"), std::ios::binary) << content;
    return path("file.safetensors");
  }
  std::string error_of(const std::string& header, std::size_t bytes) const {
    const std::string name = file(header, bytes);
    const std::string message = message_of([&] { SafetensorsFile{name}; });
    expect_contains(message, name);
    return message;
  }
};

std::string content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string golden(const std::string& dtype) {
  return repository() / cat("tests/golden/safetensors_", dtype, ".safetensors");
}

// The tensors of make_safetensors.py.
const std::vector<std::pair<std::string, std::vector<std::int64_t>>> golden_shapes = {
    {"conv1.weight", {4, 3, 3, 3}},
    {"bn1.weight", {4}},
    {"bn1.bias", {4}},
    {"bn1.running_mean", {4}},
    {"bn1.running_var", {4}},
    {"layer1.0.conv1.weight", {3, 4, 1, 1}},
    {"empty", {0, 5}},
    {"fc.weight", {5, 3}}};

std::vector<float> golden_values(std::size_t tensor) {
  std::int64_t count = 1;
  for (const std::int64_t extent : golden_shapes[tensor].second) count *= extent;
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto state =
        static_cast<std::uint32_t>(static_cast<std::uint64_t>(i) * 2654435761u + tensor * 40503u + 12345u);
    const std::int32_t integer = i % 2 != 0 ? static_cast<std::int32_t>(state >> 19) - (1 << 12)
                                            : static_cast<std::int32_t>(state >> 8) - (1 << 23);
    values.push_back(std::ldexp(static_cast<float>(integer), static_cast<int>(-22 - i % 23 + 11 * (i % 2))));
  }
  return values;
}

// Returns the largest rounding error, which is half the distance between neighbouring numbers of this size.
float tolerance(float value, const std::string& dtype) {
  int exponent = 0;
  std::frexp(value, &exponent);
  if (dtype == "F16") return std::ldexp(0.5f, std::max(-24, exponent - 11));
  return dtype == "BF16" ? std::ldexp(0.5f, exponent - 8) : 0;
}

float rounded(float value, const std::string& dtype) {
  if (dtype == "F16") return from_fp16(to_fp16(value));
  return dtype == "BF16" ? from_bf16(to_bf16(value)) : value;
}

const std::vector<std::pair<std::string, std::string>> dtypes = {{"fp32", "F32"}, {"fp16", "F16"}, {"bf16", "BF16"}};

// ---- 16-bit formats -----------------------------------------------------------------------------------------------

TEST(SmallFloats, AllBitPatternsComeBackThroughFloat) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if (std::isnan(from_fp16(half)))
      EXPECT_TRUE(std::isnan(from_fp16(to_fp16(from_fp16(half)))));
    else
      EXPECT_EQ(to_fp16(from_fp16(half)), half);
    if (std::isnan(from_bf16(half)))
      EXPECT_TRUE(std::isnan(from_bf16(to_bf16(from_bf16(half)))));
    else
      EXPECT_EQ(to_bf16(from_bf16(half)), half);
  }
}

TEST(SmallFloats, TheMiddleBetweenTwoNeighboursGoesToTheEvenOneAndAllElseToTheNearest) {
  const auto check = [](auto from, auto to, std::uint16_t last) {
    for (std::uint16_t bits = 0; bits < last; ++bits) {
      const auto next = static_cast<std::uint16_t>(bits + 1);
      const float low = from(bits), high = from(next), middle = low + (high - low) / 2;
      ASSERT_EQ(to(middle), bits % 2 == 0 ? bits : next) << bits;
      ASSERT_EQ(to(std::nextafter(middle, low)), bits) << bits;
      ASSERT_EQ(to(std::nextafter(middle, high)), next) << bits;
      ASSERT_EQ(to(-middle), (bits % 2 == 0 ? bits : next) | 0x8000) << bits;
    }
  };
  check(from_fp16, to_fp16, 0x7bff);  // the largest finite number
  // Two neighbouring bf16 numbers have their middle and its float neighbours between them.
  check(from_bf16, to_bf16, 0x7f7f);
  EXPECT_EQ(to_fp16(65519.996f), 0x7bff);
  EXPECT_EQ(to_fp16(65520.0f), 0x7c00);
  EXPECT_EQ(to_fp16(-1e30f), 0xfc00);
}

// ---- The format's own library -------------------------------------------------------------------------------------

TEST_F(SafetensorsTest, ReadsWhatTheFormatsOwnLibraryWrote) {
  for (const auto& [name, dtype] : dtypes) {
    const SafetensorsFile file(golden(name));
    EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
    ASSERT_EQ(file.entries().size(), golden_shapes.size() + 1);
    for (const SafetensorsEntry& entry : file.entries()) {
      if (entry.name == "bn1.num_batches_tracked") {
        EXPECT_EQ(entry.dtype, "I64");
        EXPECT_TRUE(entry.shape.empty());
        continue;
      }
      std::size_t tensor = 0;
      while (golden_shapes.at(tensor).first != entry.name) ++tensor;
      EXPECT_EQ(entry.dtype, dtype);
      EXPECT_EQ(entry.shape, golden_shapes[tensor].second);
      const std::vector<float> expected = golden_values(tensor);
      std::vector<float> values(expected.size(), NAN);
      file.read(entry, values);
      for (std::size_t i = 0; i < values.size(); ++i)
        EXPECT_NEAR(values[i], expected[i], tolerance(expected[i], dtype)) << name << " " << entry.name << " " << i;
    }
  }
}

TEST_F(SafetensorsTest, WritesByteForByteWhatTheFormatsOwnLibraryWrites) {
  for (const auto& [name, dtype] : dtypes) {
    std::vector<std::vector<float>> values;
    for (std::size_t tensor = 0; tensor < golden_shapes.size(); ++tensor) values.push_back(golden_values(tensor));
    std::vector<TensorToWrite> tensors;
    for (std::size_t t = 0; t < values.size(); ++t)
      tensors.push_back({golden_shapes[t].first, dtype, golden_shapes[t].second, std::span<const float>(values[t])});
    const std::int64_t step = 1234;
    tensors.push_back({"bn1.num_batches_tracked", "I64", {}, std::span(&step, 1)});
    write_safetensors(path("ours"), {{"format", "pt"}}, tensors);
    EXPECT_EQ(content_of(path("ours")), content_of(golden(name))) << name;
  }
}

// ---- Round trip ---------------------------------------------------------------------------------------------------

TEST_F(SafetensorsTest, LargeTensorsComeBackWithTheirRoundingWhateverTheBlocks) {
  std::vector<float> values((1 << 18) * 2 + 77);  // more than two blocks
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i)) * 100;
  for (const auto& [name, dtype] : dtypes) {
    const auto count = static_cast<std::int64_t>(values.size());
    write_safetensors(path("large"), {}, {{"large", dtype, {count}, std::span<const float>(values)}});
    const SafetensorsFile file(path("large"));
    std::vector<float> back(values.size());
    file.read(file.entries().at(0), back);
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(back[i], rounded(values[i], dtype)) << name << " " << i;
  }
}

TEST_F(SafetensorsTest, ReadsDoublesAsTheNearestFloat) {
  const std::string name = file(R"({"x":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}})", 0);
  const double stored[] = {0.1, -1e-50};
  std::ofstream(name, std::ios::binary | std::ios::app).write(reinterpret_cast<const char*>(stored), sizeof stored);
  const SafetensorsFile opened(name);
  std::vector<float> values(2);
  opened.read(opened.entries().at(0), values);
  EXPECT_EQ(values[0], 0.1f);
  EXPECT_EQ(values[1], 0.0f);
}

TEST_F(SafetensorsTest, AFiniteValueThatDoesNotFitIsAnErrorAndLeavesTheFileAsItWas) {
  raw("as it was");
  const std::vector<float> values = {1, 70000};
  const auto write = [&](const char* dtype) {
    write_safetensors(path("file.safetensors"), {}, {{"bn1.running_var", dtype, {2}, std::span<const float>(values)}});
  };
  const std::string message = message_of([&] { write("F16"); });
  expect_contains(message, "'bn1.running_var' has the value 70000, too large for F16");
  EXPECT_EQ(content_of(path("file.safetensors")), "as it was");
  EXPECT_FALSE(std::filesystem::exists(path("file.safetensors.tmp")));
  EXPECT_EQ(message_of([&] { write("BF16"); }), "(no error)");
}

TEST_F(SafetensorsTest, AWriteThatFailsNamesTheFileAndLeavesNothing) {
  const std::vector<float> values(100, 1);
  const std::vector<TensorToWrite> tensors = {{"x", "F32", {100}, std::span<const float>(values)}};
  expect_contains(message_of([&] { write_safetensors(path("none/file"), {}, tensors); }), path("none/file"));
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit small = before;
  small.rlim_cur = 100;  // bytes, as on a full disk
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = message_of([&] { write_safetensors(path("file"), {}, tensors); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, old_handler);
  expect_contains(message, "cannot write");
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(SafetensorsTest, AMeanOrDeviationOfOtherPixelsIsAnErrorThatNamesTheFile) {
  const std::vector<float> values(2, 1);
  const auto error = [&](const std::string& mean, const std::string& std) {
    write_safetensors(path("w.safetensors"), {{"mean", mean}, {"std", std}},
                      {{"x", "F32", {2}, std::span<const float>(values)}});
    DataConfig data;
    data.channels = 1;
    return message_of([&] { use_image_input_of(SafetensorsFile(path("w.safetensors")), data); });
  };
  EXPECT_EQ(error("[0.5]", "[0.25]"), "(no error)");
  expect_contains(error("[131]", "[0.25]"), path("w.safetensors: its mean is [131], expected numbers from 0 to 1"));
  expect_contains(error("[0.5]", "[0]"), path("w.safetensors: its std is [0], expected numbers above 0, at most 1"));
  expect_contains(error("[0.5]", "[64]"), "its std is [64], expected numbers above 0, at most 1");
  expect_contains(error("[0.5, 0.5]", "[0.25]"), "are no lists of 1 number(s)");
}

// ---- Damaged files ------------------------------------------------------------------------------------------------

TEST_F(SafetensorsTest, DamagedFilesAreOneErrorThatNamesFileAndTensor) {
  const std::string x = R"("x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const struct {
    std::string header;
    std::size_t bytes;
    std::string message;
  } cases[] = {
      {"{" + x + "}", 7, "tensor 'x': ends at byte 70 of a file of 69: the file is cut off"},
      {"{" + x + "}", 12, "4 bytes at the end belong to no tensor"},
      {"{" + x, 8, "the header is no JSON: parse error at line 1"},
      {"[1, 2]", 0, "the header is JSON, but no object"},
      {"{" + x + "," + x + "}", 8, "the header has 'x' twice"},
      {R"({"__metadata__":{"step":1},)" + x + "}", 8, "__metadata__ 'step' is not text"},
      {R"({"__metadata__":"pt",)" + x + "}", 8, "__metadata__ is not an object"},
      {R"({"x":3})", 0, "tensor 'x': no dtype"},
      {R"({"x":{"shape":[2],"data_offsets":[0,8]}})", 8, "tensor 'x': no dtype"},
      {R"({"x":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8, "tensor 'x': unknown dtype 'F33'"},
      {R"({"x":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, "tensor 'x': its shape is not a list of sizes"},
      {R"({"x":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", 8, "tensor 'x': its shape is not a list of sizes"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8,
       "tensor 'x': its data_offsets are not two numbers"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,7.5]}})", 8,
       "tensor 'x': its data_offsets are not two numbers"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "tensor 'x': begins at byte 8 but ends at 0"},
      {R"({"x":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8,
       "tensor 'x': has 8 bytes; its shape [3] of F32 needs 12"},
      {R"({"x":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0, "larger than any file"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[9223372036854775799,9223372036854775807]}})", 8,
       "tensor 'x': ends at byte"},
      {"{" + x + R"(,"y":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12, "tensor 'y' overlaps 'x'"},
      {"{" + x + R"(,"y":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})", 16,
       "4 bytes before tensor 'y' belong to no tensor"},
  };
  for (const auto& c : cases) expect_contains(error_of(c.header, c.bytes), c.message);
}

TEST_F(SafetensorsTest, OtherFilesAreOneErrorThatSaysWhatToDo) {
  const auto message = [&](const std::string& content) {
    const std::string name = raw(content);
    return message_of([&] { SafetensorsFile{name}; });
  };
  expect_contains(message(""), "has 0 bytes, too few");
  expect_contains(message("abc"), "has 3 bytes, too few");
  expect_contains(message(std::string("\x10\0\0\0\0\0\0\0{}", 10)), "its header has 16 bytes, but the file has 10");
  expect_contains(message("a text that is no such file"), "more than the 100000000 that the format allows");
  expect_contains(message("PK\x03\x04 and so on"), "is a zip file");
  expect_contains(message("\x80\x02\x8a\x0al and so on"), "file of torch.save");
  expect_contains(message(std::string("\x80\x02}q\x01.....", 10)), "is a Python pickle");
  expect_contains(message("\x89HDF\r\n\x1a\n"), "ringtrain export CHECKPOINT.h5");
  expect_contains(message_of([&] { SafetensorsFile{path("none")}; }), "cannot open: No such file");
  expect_contains(message_of([&] { SafetensorsFile{folder_.string()}; }), "is not a regular file");
}

TEST_F(SafetensorsTest, ATensorOfIntegersCannotBeWeights) {
  const std::string name = file(R"({"x":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}})", 8);
  const SafetensorsFile opened(name);
  std::vector<float> values(2), three(3);
  expect_contains(message_of([&] { opened.read(opened.entries().at(0), values); }),
                  "tensor 'x' is of type I32, expected F32, F16, BF16 or F64");
  expect_contains(message_of([&] { opened.read(opened.entries().at(0), three); }), "has 2 values, expected 3");
}

TEST_F(SafetensorsTest, AFileThatShrinksWhileItIsReadIsAnError) {
  const std::string name = file(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  const SafetensorsFile opened(name);
  std::filesystem::resize_file(name, std::filesystem::file_size(name) - 1);
  std::vector<float> values(2);
  expect_contains(message_of([&] { opened.read(opened.entries().at(0), values); }), "ends within tensor 'x'");
}

}  // namespace
}  // namespace ringtrain
