// Tests the rule for files that an option names: which of them are replaced, written into and refused.
#include "base/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/files.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

class OutputFileTest : public WithFolder {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    return message_of([&] { write_output(path(name), kind_, text); });
  }
  void make(const std::string& name, const std::string& text) { write_text_file(path(name), text, name); }
  std::string text_of(const std::string& name) { return file_text(path(name)); }

  const OutputKind kind_ = json_output("result", {"loss", "uuid"});
  const std::string result_ = "{\"loss\": 1, \"uuid\": \"x\"}\n",
                    earlier_ = "{\"uuid\": \"y\", \"more\": 0, \"loss\": 2}";
};

TEST_F(OutputFileTest, OnlyEarlierOutputsAndEmptyFilesAreReplaced) {
  for (const std::string& earlier : {earlier_, std::string()}) {
    make("a", earlier);
    EXPECT_EQ(write("a", result_), "(no error)");
    EXPECT_EQ(text_of("a"), result_);
  }
  EXPECT_EQ(write("new", result_), "(no error)");
  EXPECT_EQ(text_of("new"), result_);
  const std::string header = "{\"__metadata__\"", safetensors = std::string(8, '\1') + header;
  for (const auto& [text, what] : {std::pair<std::string, std::string>{"{\"loss\": 1}", "a JSON file of another kind"},
                                   {"\x89HDF\r\n\x1a\n...", "an HDF5 file, such as a checkpoint or a data set"},
                                   {"\x1f\x8b...", "compressed with gzip"},
                                   {safetensors, "a safetensors file"}}) {
    make("b", text);
    EXPECT_EQ(write("b", result_), cat(path("b"), ": exists already, and is no result; it is ", what,
                                       " [remove it first, or give another name]"));
    EXPECT_EQ(text_of("b"), text);
  }
  make("b", "notes");
  expect_contains(write("b", result_), "exists already, and is no result [");
  EXPECT_EQ(message_of([&] { write_output(path("b"), any_file(), result_); }), "(no error)");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 3) << "a temporary file is left";
}

TEST_F(OutputFileTest, TablesAreKnownByTheirFirstColumns) {
  const OutputKind table = table_output("table", "step,loss,");
  make("t", "step,loss,rate\n1,2,3\n");
  EXPECT_EQ(message_of([&] { expect_output(path("t"), table); }), "(no error)");
  make("t", "step,accuracy\n1,2\n");
  expect_contains(message_of([&] { expect_output(path("t"), table); }), "is no table");
}

TEST_F(OutputFileTest, FoldersAndWriteProtectedFilesAreRefused) {
  fs::create_directory(path("folder"));
  expect_contains(write("folder", result_), "is a folder, expected the name of a file");
  make("a", earlier_);
  fs::permissions(path("a"), fs::perms::owner_read);
  expect_contains(write("a", result_), "exists already, and is write-protected");
  EXPECT_EQ(text_of("a"), earlier_);
}

TEST_F(OutputFileTest, ALinkStaysAndItsFileIsReplaced) {
  fs::create_directory(path("folder"));
  make("folder/a", earlier_);
  fs::create_symlink("a", path("folder/link"));
  fs::create_symlink(path("folder/link"), path("to_earlier"));
  fs::create_symlink("folder/absent", path("to_absent"));
  for (const auto& [link, file] : {std::pair{"to_earlier", "folder/a"}, {"to_absent", "folder/absent"}}) {
    EXPECT_EQ(write(link, result_), "(no error)");
    EXPECT_TRUE(fs::is_symlink(path(link)));
    EXPECT_EQ(text_of(file), result_);
  }
  EXPECT_TRUE(fs::is_symlink(path("folder/link")));
  make("folder/a", "notes");
  expect_contains(write("to_earlier", result_), "is no result");
  fs::create_symlink("loop", path("loop"));
  expect_contains(write("loop", result_), "its links lead nowhere");
}

TEST_F(OutputFileTest, APipeIsWrittenIntoAlsoThroughALink) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  fs::create_symlink("pipe", path("link"));
  const int reader = ::open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  for (const char* name : {"pipe", "link"}) {
    EXPECT_EQ(write(name, result_), "(no error)");
    std::string got(100, '\0');
    got.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::read(reader, got.data(), got.size()))));
    EXPECT_EQ(got, result_);
  }
  ::close(reader);
  EXPECT_TRUE(fs::is_fifo(path("pipe")) && fs::is_symlink(path("link")));
}

TEST_F(OutputFileTest, ADeviceIsWrittenIntoAndStays) {
  if (::mknod(path("null").c_str(), S_IFCHR | 0600, 0x103) != 0) GTEST_SKIP() << "only root makes devices";
  const int device = ::open(path("null").c_str(), O_WRONLY | O_CLOEXEC);
  if (device < 0) GTEST_SKIP() << "this file system has no devices";
  ::close(device);
  EXPECT_EQ(write("null", result_), "(no error)");
  EXPECT_TRUE(fs::is_character_file(path("null")));
}

}  // namespace
}  // namespace ringtrain
