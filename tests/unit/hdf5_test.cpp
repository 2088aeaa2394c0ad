#include "data/hdf5.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

class Hdf5 : public WithFolder {};

template <class T>
void write_values(h5::File& file, const std::string& name, const std::vector<T>& values, const h5::Shape& shape) {
  file.write<T>(name, values, shape);
  EXPECT_EQ(file.read<T>(name), values);
  EXPECT_EQ(file.shape(name), shape);
}

TEST_F(Hdf5, DataSetsOfEveryTypeComeBackWithTheirShape) {
  h5::File file = h5::File::create(path("a.h5"));
  write_values<std::uint8_t>(file, "u8", {0, 255, 3, 4, 5, 6}, {2, 3});
  write_values<std::int32_t>(file, "i32", {-1, 2147483647}, {2});
  write_values<std::uint32_t>(file, "u32", {4294967295u}, {1});
  write_values<std::int64_t>(file, "deep/er/i64", {-(std::int64_t{1} << 60)}, {1, 1});
  write_values<std::uint64_t>(file, "deep/u64", {~std::uint64_t{0}}, {1});
  write_values<float>(file, "f32", {1.5f, -0.25f}, {2});
  write_values<double>(file, "f64", {1e300}, {1});
  write_values<std::uint8_t>(file, "empty", {}, {0, 9});
  write_values<float>(file, "scalar", {7.0f}, {});
  file.close();

  const h5::File again = h5::File::open(path("a.h5"));
  EXPECT_EQ(again.list("/"), (std::vector<std::string>{"deep", "empty", "f32", "f64", "i32", "scalar", "u32", "u8"}));
  EXPECT_EQ(again.list("deep"), (std::vector<std::string>{"er", "u64"}));
  EXPECT_TRUE(again.has("deep/er/i64"));
  EXPECT_FALSE(again.has("deep/er/none"));
  EXPECT_FALSE(again.has("no/such/parent"));
  EXPECT_EQ(again.read<std::uint8_t>("u8"), (std::vector<std::uint8_t>{0, 255, 3, 4, 5, 6}));
}

TEST_F(Hdf5, AttributesComeBack) {
  h5::File file = h5::File::create(path("a.h5"));
  file.make_group("group");
  file.write_attribute("/", "text", std::string("na\xC3\xAFve"));
  file.write_attribute("/", "no_text", std::string());
  file.write_attribute("/", "words", std::vector<std::string>{"a", "", "long word"});
  file.write_attribute("/", "no_words", std::vector<std::string>{});
  file.write_attribute("group", "count", std::int64_t{-7});
  file.write_attribute("group", "rate", 0.125);
  file.write_attribute("group", "rate", 0.25);  // replaces the attribute
  file.write_integers("/", "version", {1, 0});
  file.close();

  const h5::File again = h5::File::open(path("a.h5"));
  EXPECT_EQ(again.read_string("/", "text"), "na\xC3\xAFve");
  EXPECT_EQ(again.read_string("/", "no_text"), "");
  EXPECT_EQ(again.read_strings("/", "words"), (std::vector<std::string>{"a", "", "long word"}));
  EXPECT_TRUE(again.read_strings("/", "no_words").empty());
  EXPECT_EQ(again.read_integer("group", "count"), -7);
  EXPECT_EQ(again.read_real("group", "rate"), 0.25);
  EXPECT_EQ(again.read_real("group", "count"), -7.0);
  EXPECT_EQ(again.read_integers("/", "version"), (std::vector<std::int64_t>{1, 0}));
  EXPECT_TRUE(again.has_attribute("group", "rate"));
  EXPECT_FALSE(again.has_attribute("group", "none"));
  expect_contains(message_of([&] { again.read_string("/", "none"); }), "a.h5: attribute 'none' of '/' is missing");
  expect_contains(message_of([&] { again.read_string("group", "count"); }), "expected one string, found i64");
  expect_contains(message_of([&] { again.read_integer("/", "text"); }), "expected integers, found string");
  expect_contains(message_of([&] { again.read_integer("/", "version"); }), "has 2 values, expected one");
}

TEST_F(Hdf5, WrongTypesAndMissingDataSetsAreNamed) {
  h5::File file = h5::File::create(path("a.h5"));
  file.write<float>("x", std::vector<float>{1}, {1});
  expect_contains(message_of([&] { file.read<std::uint8_t>("x"); }),
                  "data set 'x' has the wrong type: expected u8, found f32");
  expect_contains(message_of([&] { file.read<float>("y"); }), "data set 'y' is missing");
  expect_contains(message_of([&] { file.write<float>("x", std::vector<float>{1}, {1}); }), "cannot write data set 'x'");
  expect_contains(message_of([&] { file.write<float>("z", std::vector<float>{1}, {2}); }),
                  "shape has 2 elements, given 1");
}

TEST_F(Hdf5, OpeningWhatIsNoHdf5FileSaysWhatItIs) {
  std::ofstream(path("empty.h5"));
  std::ofstream(path("text.h5")) << "name,breed\nBella,Beagle\n";
  fs::create_directory(path("folder.h5"));
  expect_contains(message_of([&] { h5::File::open(path("none.h5")); }), "No such file or directory");
  expect_contains(message_of([&] { h5::File::open(path("empty.h5")); }), "is empty (0 bytes)");
  expect_contains(message_of([&] { h5::File::open(path("text.h5")); }), "is not an HDF5 file");
  expect_contains(message_of([&] { h5::File::open(path("folder.h5")); }), "is a directory");
}

TEST_F(Hdf5, ATruncatedFileIsCalledTruncated) {
  h5::File file = h5::File::create(path("a.h5"));
  file.write<std::uint8_t>("x", std::vector<std::uint8_t>(100000, 1), {100000});
  file.close();
  fs::resize_file(path("a.h5"), 50000);
  expect_contains(message_of([&] { h5::File::open(path("a.h5")); }), "truncated file");
}

TEST_F(Hdf5, CreateNeverOverwrites) {
  h5::File::create(path("a.h5")).close();
  expect_contains(message_of([&] { h5::File::create(path("a.h5")); }), "exists already");
  expect_contains(message_of([&] { h5::File::create(path("none/a.h5")); }), "No such file or directory");
}

// Writes a file under a limit on its size. The limit stands for a full disk, with EFBIG instead of ENOSPC. Call this
// function in a child process, because the limit holds for a whole process. Returns 3 for an Error that names the
// cause, 2 for another Error and 1 for none.
int write_under_limit(const std::string& path, rlim_t limit, bool many_attributes) {
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{limit, limit};
  ::setrlimit(RLIMIT_FSIZE, &small);
  int result = 1;
  try {
    h5::File file = h5::File::create(path);
    if (many_attributes) {
      for (int i = 0; i < 200; ++i) file.write_attribute("/", cat("name", i), std::string(300, 'x'));
    } else {
      file.write<std::uint8_t>("x", std::vector<std::uint8_t>(100000, 1), {100000});
    }
    file.close();
  } catch (const Error& error) {
    result = std::string(error.what()).find("File too large") == std::string::npos ? 2 : 3;
  }
  return result;
}

int exit_code_of(const std::function<int()>& action) {
  const pid_t child = ::fork();
  if (child == 0) std::exit(action());  // exit, not _exit, because HDF5's own clean-up must not crash either
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST_F(Hdf5, AWriteThatFailsIsAnErrorAndNotACrash) {
  EXPECT_EQ(exit_code_of([&] { return write_under_limit(path("a.h5"), 50000, false); }), 3);
}

TEST_F(Hdf5, MetadataThatCannotBeWrittenIsAnErrorAndNotACrash) {
  EXPECT_EQ(exit_code_of([&] { return write_under_limit(path("a.h5"), 1000, true); }), 3);
  EXPECT_EQ(exit_code_of([&] { return write_under_limit(path("b.h5"), 20000, true); }), 3);
}

TEST_F(Hdf5, PublishRenamesAndNamesWhatIsMissing) {
  h5::File file = h5::File::create(path("a.tmp"));
  file.write_attribute("/", "x", std::int64_t{1});
  file.flush();
  file.close();
  publish_file(path("a.tmp"), path("a.h5"));
  EXPECT_FALSE(fs::exists(path("a.tmp")));
  EXPECT_EQ(h5::File::open(path("a.h5")).read_integer("/", "x"), 1);
  expect_contains(message_of([&] { publish_file(path("none.tmp"), path("b.h5")); }), "none.tmp: cannot open to sync");
  fs::create_directory(path("folder"));
  expect_contains(message_of([&] { publish_file(path("a.h5"), path("folder")); }), "cannot rename to");
}

TEST_F(Hdf5, ManyThreadsMayUseFilesAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 20; ++i) {
        const std::string name = path(cat(t, "-", i, ".h5"));
        h5::File file = h5::File::create(name);
        file.write<std::int32_t>("x", std::vector<std::int32_t>{t, i}, {2});
        file.close();
        EXPECT_EQ(h5::File::open(name).read<std::int32_t>("x"), (std::vector<std::int32_t>{t, i}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Crc32c, HasThePublishedValues) {  // RFC 3720, B.4
  std::vector<std::uint8_t> ascending(32);
  for (std::size_t i = 0; i < 32; ++i) ascending[i] = static_cast<std::uint8_t>(i);
  EXPECT_EQ(crc32c(std::vector<std::uint8_t>(32, 0)), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::vector<std::uint8_t>(32, 0xFF)), 0x62A8AB43u);
  EXPECT_EQ(crc32c(ascending), 0x46DD794Eu);
  EXPECT_EQ(crc32c_portable(ascending), 0x46DD794Eu);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(Crc32c, ContinuesAndAgreesWithThePortableForm) {
  std::vector<std::uint8_t> bytes(1003);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * i + i / 7);
  const std::span<const std::uint8_t> all(bytes);
  for (const std::size_t cut : {0, 1, 7, 8, 500, 1003}) {
    EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), crc32c(all));
    EXPECT_EQ(crc32c_portable(all.subspan(cut), crc32c_portable(all.first(cut))), crc32c(all));
  }
}

}  // namespace
}  // namespace ringtrain
