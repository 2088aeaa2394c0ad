// Runs the fuzzer's stored inputs through its targets, so that repaired findings stay repaired.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "base/error.h"
#include "data_prep/verify.h"
#include "tests/fuzz/target.h"
#include "tests/unit/repository.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> inputs_of(const std::string& target) {
  std::vector<fs::path> files;
  for (const char* kind : {"corpus", "findings"}) {
    const fs::path folder = repository() / "tests/fuzz" / kind / target;
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

// The fuzzer changes its seeds. A seed that its target refuses at once does not help, so every target needs a seed that
// it accepts.
TEST(FuzzInputs, AreTakenToTheEndSomewhere) {
  for (const auto& [name, read] : fuzz::targets()) {
    bool taken = false;
    for (const fs::path& path : inputs_of(name)) {
      std::ifstream in(path, std::ios::binary);
      const std::string input{std::istreambuf_iterator<char>(in), {}};
      try {
        taken = taken || fuzz::run(read, input).empty();
      } catch (const std::exception&) {  // reported by the other test
      }
    }
    EXPECT_TRUE(taken) << name;
  }
}

TEST(FuzzInputs, BelongToTargets) {
  for (const char* kind : {"corpus", "findings"}) {
    if (!fs::is_directory(repository() / "tests/fuzz" / kind)) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(repository() / "tests/fuzz" / kind))
      EXPECT_TRUE(fuzz::targets().contains(entry.path().filename().string())) << entry.path();
  }
}

std::string text_of_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The repair keeps a right checksum, and turns a wrong one, which the reader refuses, back into the right one.
TEST(FuzzInputs, RepairsMakeChecksumsRight) {
  struct Case {
    std::string target, file;
    std::size_t checksum_at;
  };
  for (const auto& [target, file, at] :
       {Case{"png", "stored", 29}, Case{"png", "palette", 30}, Case{"tar", "ustar", 150}, Case{"tar", "pax", 150}}) {
    SCOPED_TRACE(cat(target, "/", file));
    const std::string good = text_of_file(repository() / "tests/fuzz/corpus" / target / file);
    const fuzz::Read read = fuzz::targets().at(target);
    const fuzz::Repair repair = fuzz::repairs().at(target);
    EXPECT_EQ(repair(good), good);
    EXPECT_EQ(fuzz::run(read, good), "");
    std::string wrong = good;
    wrong.at(at) ^= 1;
    EXPECT_NE(fuzz::run(read, wrong), "");
    EXPECT_EQ(repair(wrong), good);
  }
  for (const auto& [name, repair] : fuzz::repairs())
    for (const std::string& none : {std::string(), std::string("x"), std::string(700, 'x')})
      EXPECT_EQ(repair(none).size(), none.size()) << name;
}

// A record in a pax header begins with its own length. The test replaces this length by nines, and the repair must
// write the right length again.
TEST(FuzzInputs, ARepairedPaxRecordHasItsLength) {
  const std::string good = text_of_file(repository() / "tests/fuzz/corpus/tar/pax");
  const std::size_t record = 512, blank = good.find(' ', record);
  std::string wrong = good;
  wrong.replace(record, blank - record, std::string(blank - record, '9'));
  EXPECT_NE(fuzz::run(fuzz::targets().at("tar"), wrong), "");
  EXPECT_EQ(fuzz::repairs().at("tar")(wrong), good);
}

// When a target changes a value of a data set, it writes the checksums again. The checks that come after the checksums
// must see the changed value.
TEST(FuzzInputs, ChangedValuesHaveRightChecksums) {
  const auto path_of = [](const char* target, std::string input) {
    EXPECT_NO_THROW(fuzz::run(fuzz::targets().at(target), input));
    return fuzz::in_folder(std::string(target) == "dataset_text" ? "text.h5" : "jpeg.h5");
  };
  const auto problems_of = [](const std::string& path) {
    std::string all;
    for (const std::string& fault : verify_dataset(path).faults) all += fault + "\n";
    return all;
  };
  // Objects are numbered in the order of their names: crc32c, name_index, name_offsets, names, sample_ids, tokens.
  const std::string token = problems_of(path_of("dataset_text", std::string("\xf0\x05\x07\x63\0\0\0\0\0\0\0", 11)));
  EXPECT_NE(token.find("holds the id 99"), std::string::npos) << token;
  EXPECT_EQ(token.find("CRC-32C"), std::string::npos) << token;
  // The objects are class_ids, class_names, crc32c, images, labels, ... The change hits the first byte of the first
  // picture. An input of odd length uses the JPEG data set.
  const std::string picture = problems_of(path_of("dataset_images", std::string("\xf0\x03\0\0\0\0\0\0\0\0\0", 11)));
  EXPECT_NE(picture.find("does not decode"), std::string::npos) << picture;
  EXPECT_EQ(picture.find("CRC-32C"), std::string::npos) << picture;
}

// Only Clang builds the fuzzer's driver. This test sees that the driver's checks fail where they should.
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
