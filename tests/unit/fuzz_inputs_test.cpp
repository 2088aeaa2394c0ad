// The fuzzer's stored inputs, through the targets that it runs: what once was a finding stays repaired.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "base/error.h"
#include "tests/fuzz/target.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> inputs_of(const std::string& target) {
  std::vector<fs::path> files;
  for (const char* kind : {"corpus", "findings"}) {
    const fs::path folder = fs::path("tests/fuzz") / kind / target;
    if (!fs::is_directory(folder)) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  }
  return files;
}

TEST(FuzzInputs, LeaveOnlyErrorsOfTheProgramsOwn) {
  ASSERT_FALSE(fuzz::targets().empty());
  for (const auto& [name, read] : fuzz::targets()) {
    const std::vector<fs::path> files = inputs_of(name);
    EXPECT_FALSE(files.empty()) << "no stored inputs of " << name;
    for (const fs::path& path : files) {
      SCOPED_TRACE(path.string());
      std::ifstream in(path, std::ios::binary);
      const std::string input{std::istreambuf_iterator<char>(in), {}};
      EXPECT_NO_THROW(fuzz::run(read, input));
    }
  }
}

// A seed that is refused at once shows the fuzzer nothing.
TEST(FuzzInputs, AreTakenToTheEndSomewhere) {
  for (const auto& [name, read] : fuzz::targets()) {
    bool taken = false;
    for (const fs::path& path : inputs_of(name)) {
      std::ifstream in(path, std::ios::binary);
      const std::string input{std::istreambuf_iterator<char>(in), {}};
      try {
        taken = taken || fuzz::run(read, input).empty();
      } catch (const std::exception&) {  // the other test says so
      }
    }
    EXPECT_TRUE(taken) << name;
  }
}

TEST(FuzzInputs, BelongToTargets) {
  for (const char* kind : {"corpus", "findings"}) {
    if (!fs::is_directory(fs::path("tests/fuzz") / kind)) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(fs::path("tests/fuzz") / kind))
      EXPECT_TRUE(fuzz::targets().contains(entry.path().filename().string())) << entry.path();
  }
}

// The driver is built with Clang alone; here the checks themselves are seen to fail.
TEST(FuzzInputs, OtherExceptionsAndBadMessagesAreFindings) {
  EXPECT_THROW(fuzz::run([](std::string_view) { throw std::out_of_range("x"); }, ""), std::out_of_range);
  EXPECT_THROW(fuzz::run([](std::string_view) { throw Error(""); }, ""), std::logic_error);
  EXPECT_THROW(fuzz::run([](std::string_view) { throw Error(std::string(fuzz::longest_message, 'x')); }, ""),
               std::logic_error);
  EXPECT_THROW(fuzz::run([](std::string_view) { fuzz::expect(false, "x"); }, ""), std::logic_error);
  EXPECT_EQ(fuzz::run([](std::string_view) { throw Error("bad", "do this"); }, ""), "bad [do this]");
}

}  // namespace
}  // namespace ringtrain
