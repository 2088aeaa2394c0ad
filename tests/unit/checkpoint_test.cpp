#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "base/random.h"
#include "checkpoint/writer.h"
#include "data/hdf5.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public WithFolder {
 protected:
  // Returns the path of the newest checkpoint that is whole, or "".
  std::string newest_path(const std::string& run_dir) {
    warnings_.clear();
    const std::optional<FoundCheckpoint> newest = read_newest_checkpoint(run_dir, warnings_);
    return newest ? newest->path : "";
  }

  std::vector<std::string> warnings_;  // of the newest newest_path()
};

std::vector<float> noise(std::uint64_t seed, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(random_normal(seed, i));
  return values;
}

Checkpoint example(std::int64_t step = 7, std::int64_t size = 1000) {
  Checkpoint checkpoint;
  checkpoint.step = step;
  checkpoint.texts = {{"experiment", "name: test\nseed: 1\n"}, {"model", "char_lstm"}, {"note", ""}};
  checkpoint.numbers = {{"best_value", 1.5}, {"samples", (std::int64_t{1} << 53) + 1}};  // no double holds the second
  checkpoint.arrays = {{"weights/lstm.weight", {size / 10, 10}, noise(1, size)},
                       {"weights/lstm.bias", {10}, noise(2, 10)},
                       {"optimizer/exp_avg/lstm.weight", {size / 10, 10}, noise(3, size)},
                       {"state/hidden", {2, 3}, noise(4, 6)}};
  return checkpoint;
}

void expect_same_bits(const Checkpoint& a, const Checkpoint& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.texts, b.texts);
  ASSERT_EQ(a.numbers.size(), b.numbers.size());
  for (const auto& [name, number] : a.numbers) {
    const Number& other = b.numbers.at(name);
    ASSERT_EQ(number.index(), other.index()) << name;
    const auto bits = [](auto value) { return std::bit_cast<std::uint64_t>(value); };
    EXPECT_EQ(std::visit(bits, number), std::visit(bits, other)) << name;
  }
  ASSERT_EQ(a.arrays.size(), b.arrays.size());
  for (std::size_t i = 0; i < a.arrays.size(); ++i) {
    EXPECT_EQ(a.arrays[i].name, b.arrays[i].name);
    EXPECT_EQ(a.arrays[i].shape, b.arrays[i].shape);
    ASSERT_EQ(a.arrays[i].values.size(), b.arrays[i].values.size());
    const std::size_t bytes = a.arrays[i].values.size() * sizeof(float);
    if (bytes == 0) continue;  // memcmp must not get null pointers
    EXPECT_EQ(std::memcmp(a.arrays[i].values.data(), b.arrays[i].values.data(), bytes), 0) << a.arrays[i].name;
  }
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// ---- Round trip ---------------------------------------------------------------------------------------------------

TEST_F(CheckpointTest, ComesBackBitForBitWithOddValues) {
  Checkpoint checkpoint = example();
  using limits = std::numeric_limits<float>;
  const float nan_with_payload = std::bit_cast<float>(0x7fc12345u);
  checkpoint.arrays.push_back({"odd/values",
                               {10},
                               {0.0f, -0.0f, limits::denorm_min(), -limits::denorm_min(), limits::min(), limits::max(),
                                limits::lowest(), limits::infinity(), -limits::infinity(), nan_with_payload}});
  checkpoint.arrays.push_back({"odd/empty", {0}, {}});
  checkpoint.arrays.push_back({"odd/empty_rows", {0, 5}, {}});
  checkpoint.arrays.push_back({"odd/one", {1, 1, 1}, {42.0f}});
  checkpoint.arrays.push_back({"deep/er/and/deeper/x", {1}, {1.0f}});
  checkpoint.numbers["nan"] = std::numeric_limits<double>::quiet_NaN();
  checkpoint.numbers["minus_zero"] = -0.0;
  checkpoint.numbers["third"] = 1.0 / 3;
  checkpoint.texts["utf8"] = "Zo\u00eb \u4e2d\n\t\"quoted\"";
  checkpoint.texts["long"] = std::string(300000, 'x') + "end";  // more than an HDF5 attribute holds
  write_checkpoint(path("a.h5"), checkpoint);
  expect_same_bits(checkpoint, read_checkpoint(path("a.h5")));
  EXPECT_EQ(files_in(folder_), std::vector<std::string>{"a.h5"}) << "no temporary file may be left";
}

TEST_F(CheckpointTest, LargeArraysComeBackBitForBit) {
  Checkpoint checkpoint;
  checkpoint.step = std::int64_t{1} << 40;
  std::vector<float> values(6'000'001);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(i * 709));
  checkpoint.arrays.push_back({"weights/large", {6'000'001}, std::move(values)});
  write_checkpoint(path("a.h5"), checkpoint);
  expect_same_bits(checkpoint, read_checkpoint(path("a.h5")));
}

TEST_F(CheckpointTest, ReplacesAnOlderFileAndLeftoversOfAKilledJob) {
  write_checkpoint(path("a.h5"), example(1));
  std::ofstream(path("a.h5.tmp")) << "left by a killed job";
  write_checkpoint(path("a.h5"), example(2));
  EXPECT_EQ(read_checkpoint(path("a.h5")).step, 2);
  EXPECT_EQ(files_in(folder_), std::vector<std::string>{"a.h5"});
}

TEST_F(CheckpointTest, NamesAMissingArrayAndAnotherShape) {
  const Checkpoint checkpoint = example();
  EXPECT_EQ(&checkpoint.array("state/hidden", {2, 3}), &checkpoint.arrays[3]);
  expect_contains(message_of([&] { checkpoint.array("weights/other", {2}); }), "no array 'weights/other'");
  const std::string message = message_of([&] { checkpoint.array("state/hidden", {4, 3}); });
  expect_contains(message, "another model");
  expect_contains(message, "'state/hidden' has the shape [2, 3]");
  expect_contains(message, "wants [4, 3]");
}

TEST_F(CheckpointTest, RefusesNamesThatItCouldNotReadBack) {
  for (const std::string name : {"", "/a", "a/", "a\tb", "contents", "texts/a"}) {
    Checkpoint checkpoint;
    checkpoint.arrays.push_back({name, {1}, {1.0f}});
    expect_contains(message_of([&] { write_checkpoint(path("a.h5"), checkpoint); }), "cannot be the name");
  }
  Checkpoint checkpoint;
  checkpoint.texts["schema"] = "x";
  expect_contains(message_of([&] { write_checkpoint(path("a.h5"), checkpoint); }), "'schema' is taken");
  EXPECT_TRUE(files_in(folder_).empty());
}

// ---- Damage -------------------------------------------------------------------------------------------------------

void edit(const std::string& path, const std::function<void(hid_t)>& change) {
  const h5::Guard lock;
  const h5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
  ASSERT_GE(file.get(), 0);
  change(file.get());
}

template <class T>
void put_attribute(hid_t file, const char* object, const char* name, hid_t type, T value) {
  H5Adelete_by_name(file, object, name, H5P_DEFAULT);
  const h5::Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const h5::Handle attribute(
      H5Acreate_by_name(file, object, name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  ASSERT_GE(H5Awrite(attribute.get(), type, &value), 0);
}

void replace_dataset(hid_t file, const char* name, hid_t type, std::vector<hsize_t> shape) {
  H5Ldelete(file, name, H5P_DEFAULT);
  const h5::Handle space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr), H5Sclose);
  const h5::Handle set(H5Dcreate2(file, name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Dclose);
  ASSERT_GE(set.get(), 0);
}

void flip_byte(const std::string& path, std::uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 0x10));
}

std::uint64_t offset_of(const std::string& path, const char* dataset) {
  std::uint64_t offset = 0;
  edit(path, [&](hid_t file) {
    const h5::Handle set(H5Dopen2(file, dataset, H5P_DEFAULT), H5Dclose);
    offset = H5Dget_offset(set.get());
  });
  return offset;
}

std::uint64_t position_of(const std::string& path, const std::string& bytes) {
  std::ifstream file(path, std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), {});
  const std::size_t position = all.find(bytes);
  EXPECT_NE(position, std::string::npos);
  return position;
}

struct Damage {
  const char* what;
  std::function<void(const std::string&)> apply;
  const char* expected;  // a part of the message
};

TEST_F(CheckpointTest, EveryDamageIsNamed) {
  const auto truncated = [](double share) {
    return [share](const std::string& file) {
      fs::resize_file(file, static_cast<std::uintmax_t>(share * static_cast<double>(fs::file_size(file))));
    };
  };
  const auto edited = [](std::function<void(hid_t)> change) {
    return [change](const std::string& file) { edit(file, change); };
  };
  const std::vector<Damage> table = {
      {"missing", [](auto& file) { fs::remove(file); }, "No such file"},
      {"empty", truncated(0), "empty"},
      {"a few bytes", [](auto& file) { fs::resize_file(file, 5); }, "not an HDF5 file"},
      {"superblock only", [](auto& file) { fs::resize_file(file, 100); }, "cannot open as HDF5: truncated file"},
      {"half", truncated(0.5), "truncated file"},
      {"last byte gone", [](auto& file) { fs::resize_file(file, fs::file_size(file) - 1); }, "truncated file"},
      {"not HDF5", [](auto& file) { std::ofstream(file) << std::string(9000, 'x'); }, "not an HDF5 file"},
      {"folder", [](auto& file) { fs::remove(file), fs::create_directory(file); }, "is a directory"},
      {"first byte flipped", [](auto& file) { flip_byte(file, 0); }, "not an HDF5 file"},
      {"byte of the weights flipped",
       [](auto& file) { flip_byte(file, offset_of(file, "weights/lstm.weight") + 1234); },
       "array 'weights/lstm.weight' is damaged: crc32c"},
      {"byte of the optimizer's state flipped",
       [](auto& file) { flip_byte(file, offset_of(file, "optimizer/exp_avg/lstm.weight")); },
       "array 'optimizer/exp_avg/lstm.weight' is damaged: crc32c"},
      {"byte of a text flipped", [](auto& file) { flip_byte(file, position_of(file, "seed: 1")); },
       "the attributes or the list of contents are damaged"},
      {"byte of the list flipped", [](auto& file) { flip_byte(file, offset_of(file, "contents") + 3); },
       "the attributes or the list of contents are damaged"},
      {"no schema", edited([](hid_t f) { H5Adelete(f, "schema"); }), "is not a checkpoint: the attribute 'schema'"},
      {"a data set's schema",
       [](auto& file) {
         fs::remove(file);
         h5::File other = h5::File::create(file);
         other.write_attribute("/", "schema", std::string("ringtrain"));
       },
       "schema is \"ringtrain\", expected \"ringtrain-checkpoint\""},
      {"no format", edited([](hid_t f) { H5Adelete(f, "format"); }),
       "the checkpoint has no format number, expected the format 1"},
      {"another format", edited([](hid_t f) { put_attribute(f, "/", "format", H5T_NATIVE_INT64, 2L); }),
       "the checkpoint has the format 2, expected the format 1"},
      {"complete missing", edited([](hid_t f) { H5Adelete(f, "complete"); }), "is not complete"},
      {"complete is 0", edited([](hid_t f) { put_attribute(f, "/", "complete", H5T_NATIVE_INT64, 0L); }),
       "is not complete"},
      {"no step", edited([](hid_t f) { H5Adelete(f, "step"); }), "'step' of '/' is missing"},
      {"another step", edited([](hid_t f) { put_attribute(f, "/", "step", H5T_NATIVE_INT64, 8L); }),
       "the attributes or the list of contents are damaged"},
      {"a number deleted", edited([](hid_t f) { H5Adelete(f, "best_value"); }),
       "the attributes or the list of contents are damaged"},
      {"array deleted", edited([](hid_t f) { H5Ldelete(f, "weights/lstm.bias", H5P_DEFAULT); }),
       "array 'weights/lstm.bias' is missing"},
      {"group deleted", edited([](hid_t f) { H5Ldelete(f, "optimizer", H5P_DEFAULT); }),
       "array 'optimizer/exp_avg/lstm.weight' is missing"},
      {"list deleted", edited([](hid_t f) { H5Ldelete(f, "contents", H5P_DEFAULT); }), "'contents' is missing"},
      {"checksum deleted", edited([](hid_t f) { H5Adelete_by_name(f, "state/hidden", "crc32c", H5P_DEFAULT); }),
       "attribute 'crc32c' of 'state/hidden' is missing"},
      {"checksum is a real number",
       edited([](hid_t f) { put_attribute(f, "state/hidden", "crc32c", H5T_NATIVE_DOUBLE, 1.0); }), "wrong type"},
      {"another element type", edited([](hid_t f) {
         replace_dataset(f, "state/hidden", H5T_NATIVE_DOUBLE, {2, 3});
       }),
       "'state/hidden' has the wrong type: expected f32, found f64"},
      {"another shape", edited([](hid_t f) {
         replace_dataset(f, "state/hidden", H5T_NATIVE_FLOAT, {3, 2});
       }),
       "array 'state/hidden' has the shape [3, 2], expected [2, 3]"},
  };
  for (const Damage& damage : table) {
    SCOPED_TRACE(damage.what);
    fs::remove_all(path("a.h5"));
    write_checkpoint(path("a.h5"), example());
    damage.apply(path("a.h5"));
    const std::string message = message_of([&] { read_checkpoint(path("a.h5")); });
    expect_contains(message, damage.expected);
    expect_contains(message, path("a.h5"));
  }
}

TEST_F(CheckpointTest, NoFlippedByteIsReadAsGood) {
  const Checkpoint checkpoint = example(7, 20);
  write_checkpoint(path("a.h5"), checkpoint);
  const auto size = fs::file_size(path("a.h5"));
  int noticed = 0;
  for (std::uint64_t i = 0; i < 120; ++i) {
    fs::copy_file(path("a.h5"), path("b.h5"), fs::copy_options::overwrite_existing);
    flip_byte(path("b.h5"), static_cast<std::uint64_t>(random_uniform(5, i) * static_cast<double>(size)));
    try {
      expect_same_bits(checkpoint, read_checkpoint(path("b.h5")));  // the changed byte is padding
    } catch (const Error&) {
      ++noticed;
    }
  }
  EXPECT_GT(noticed, 0);
}

// ---- Failing files ------------------------------------------------------------------------------------------------

// Runs `action` in a child process, because limits and crashes at exit must not touch the other tests. Returns the
// child's exit code, or 1000 plus the number of the signal that ended the child.
int in_child(const std::function<int()>& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 99;
    try {
      code = action();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    std::exit(code);  // runs HDF5's own clean-up, which must not crash
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST_F(CheckpointTest, UnreadablePermissionsAreNamed) {
  write_checkpoint(path("a.h5"), example());
  ::chmod(folder_.c_str(), 0755);
  ::chmod(path("a.h5").c_str(), 0);
  EXPECT_EQ(in_child([&] {
              if (::geteuid() == 0 && ::setuid(65534) != 0) return 1;  // root may read everything
              const std::string message = message_of([&] { read_checkpoint(path("a.h5")); });
              return message.starts_with(path("a.h5") + ": cannot open: Permission denied") ? 0 : 2;
            }),
            0);
}

TEST_F(CheckpointTest, AFailingWriteLeavesTheOlderFileWholeAtAnySize) {
  write_checkpoint(path("a.h5"), example(2, 50000));
  const rlim_t whole = fs::file_size(path("a.h5"));
  for (const rlim_t limit : {rlim_t{100}, rlim_t{5000}, whole / 4, whole / 2, whole - 5000, whole - 1000, whole - 1}) {
    SCOPED_TRACE(limit);
    write_checkpoint(path("a.h5"), example(1));
    EXPECT_EQ(in_child([&] {
                std::signal(SIGXFSZ, SIG_IGN);
                const rlimit limits{limit, limit};
                ::setrlimit(RLIMIT_FSIZE, &limits);
                const std::string message = message_of([&] { write_checkpoint(path("a.h5"), example(2, 50000)); });
                if (message.find("the checkpoint of step 2 could not be written") == std::string::npos) return 1;
                if (message.find("File too large") == std::string::npos) return 2;
                return 0;
              }),
              0);
    EXPECT_EQ(files_in(folder_), std::vector<std::string>{"a.h5"});
    expect_same_bits(example(1), read_checkpoint(path("a.h5")));
  }
}

TEST_F(CheckpointTest, ADiskWithoutInodesIsNotCalledFull) {
  const std::string disk = path("disk");
  fs::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=64m,nr_inodes=4") != 0)
    GTEST_SKIP() << "needs root to mount a small disk";
  EXPECT_EQ(in_child([&] {
              write_checkpoint(disk + "/a.h5", example(1));
              write_checkpoint(disk + "/b.h5", example(1));
              try {
                write_checkpoint(disk + "/c.h5", example(2));
                write_checkpoint(disk + "/d.h5", example(2));
              } catch (const Error& error) {
                const std::string message = cat(error.what(), " | ", error.hint());
                if (message.find("No space left on device") == std::string::npos) return 1;
                if (message.find("of its 4 inodes (df -i)") == std::string::npos) return 2;
                return files_in(disk) == std::vector<std::string>{"a.h5", "b.h5", "c.h5"} ? 0 : 3;
              }
              return 4;
            }),
            0);
  ::umount(disk.c_str());
}

TEST_F(CheckpointTest, AQuotaIsNotCalledAFullDisk) {
  EXPECT_NE(advice_for_writing(EDQUOT, path("a.h5")).find("your quota there, of bytes or of files"), std::string::npos);
  EXPECT_EQ(advice_for_writing("cannot write: Disk quota exceeded", path("a.h5")),
            advice_for_writing(EDQUOT, path("")));
  EXPECT_EQ(advice_for_writing("cannot write: Input/output error", path("a.h5")), "");
}

TEST_F(CheckpointTest, AFullDiskIsNamedAndLeavesTheOlderFilesWhole) {
  const std::string disk = path("disk");
  fs::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1m") != 0) GTEST_SKIP() << "needs root to mount a small disk";
  EXPECT_EQ(in_child([&] {
              CheckpointWriter writer(disk, 2);
              writer.start(example(1, 30000), true);
              writer.finish();
              writer.start(example(2, 120000), true);  // more than the space that is left
              std::string message;
              try {
                writer.finish();
              } catch (const Error& error) {
                message = cat(error.what(), " | ", error.hint());
              }
              if (message.find("No space left on device | free some space") == std::string::npos) return 1;
              if (newest_path(disk) != checkpoint_path(disk, 1) || !warnings_.empty()) return 2;
              if (files_in(disk + "/checkpoints").size() != 2) return 3;  // the checkpoint and best.h5
              writer.start(example(3, 30000), false);                     // this one fits again
              writer.finish();
              return newest_path(disk) == checkpoint_path(disk, 3) ? 0 : 4;
            }),
            0);
  ::umount(disk.c_str());
}

// ---- A run's checkpoints ------------------------------------------------------------------------------------------

std::string checkpoints_of(const std::string& run_dir) {
  std::string text;
  for (const std::string& name : files_in(run_dir + "/checkpoints")) text += name + " ";
  return text;
}

TEST_F(CheckpointTest, PathsSortByStep) {
  EXPECT_EQ(checkpoint_path("run", 1234), "run/checkpoints/step-000001234.h5");
  EXPECT_EQ(checkpoint_path("run", 12345678901), "run/checkpoints/step-12345678901.h5");
}

TEST_F(CheckpointTest, WriterKeepsTheNewestAndTheBest) {
  {
    CheckpointWriter writer(folder_, 2);
    for (std::int64_t step = 1; step <= 5; ++step) writer.start(example(step * 10), step == 2);
    writer.finish();
    EXPECT_FALSE(writer.failed());
  }
  EXPECT_EQ(checkpoints_of(folder_), "best.h5 step-000000040.h5 step-000000050.h5 ");
  EXPECT_EQ(read_checkpoint(path("checkpoints/best.h5")).step, 20);
  EXPECT_EQ(checkpoint_steps(folder_), (std::vector<std::int64_t>{50, 40}));
}

// A file that a user has copied under such a name would be looked for under another one, again and again.
TEST_F(CheckpointTest, OtherNamesAreNoCheckpoints) {
  CheckpointWriter writer(folder_, 2);
  writer.start(example(10), false);
  writer.finish();
  for (const char* name : {"step-200.h5", "step--00000300.h5", "step-0000000400.h5"})
    fs::copy_file(path("checkpoints/step-000000010.h5"), path(std::string("checkpoints/") + name));
  EXPECT_EQ(checkpoint_steps(folder_), (std::vector<std::int64_t>{10}));
  std::vector<std::string> warnings;
  EXPECT_EQ(read_newest_checkpoint(folder_, warnings).value().checkpoint.step, 10);
}

TEST_F(CheckpointTest, ABetterOneReplacesTheBestAndTheSameStepCanBeWrittenAgain) {
  CheckpointWriter writer(folder_, 1);
  writer.start(example(1), true);
  writer.start(example(2), true);
  writer.start(example(2), true);
  writer.finish();
  EXPECT_EQ(checkpoints_of(folder_), "best.h5 step-000000002.h5 ");
  EXPECT_EQ(read_checkpoint(path("checkpoints/best.h5")).step, 2);
}

TEST_F(CheckpointTest, DestructorWaitsForTheWriting) {
  { CheckpointWriter(folder_, 1).start(example(3, 500000), false); }
  EXPECT_EQ(read_checkpoint(checkpoint_path(folder_, 3)).step, 3);
}

TEST_F(CheckpointTest, AFailedWriteKeepsTheOlderOnesAndIsToldOnce) {
  CheckpointWriter writer(folder_, 1);
  writer.start(example(1), true);
  writer.finish();
  fs::create_directories(checkpoint_path(folder_, 2) + ".tmp/in the way");
  writer.start(example(2), true);
  for (int i = 0; i < 500 && !writer.failed(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(writer.failed());
  expect_contains(message_of([&] { writer.start(example(3), false); }), "the checkpoint of step 2");
  EXPECT_FALSE(writer.failed());
  EXPECT_EQ(message_of([&] { writer.finish(); }), "(no error)");
  EXPECT_EQ(newest_path(folder_), checkpoint_path(folder_, 1));
  EXPECT_EQ(read_checkpoint(path("checkpoints/best.h5")).step, 1);
}

TEST_F(CheckpointTest, WriterRefusesValuesThatAreNotFinite) {
  CheckpointWriter writer(folder_, 1);
  writer.start(example(1), false);
  Checkpoint diverged = example(2);
  diverged.arrays[1].values[3] = -std::numeric_limits<float>::infinity();
  writer.start(diverged, true);
  expect_contains(message_of([&] { writer.finish(); }), "step 2: values of 'weights/lstm.bias' are not finite");
  EXPECT_EQ(checkpoints_of(folder_), "step-000000001.h5 ");
}

TEST_F(CheckpointTest, NewestPassesOverDamagedOnesWithAWarning) {
  EXPECT_EQ(newest_path(folder_), "");
  CheckpointWriter writer(folder_, 3);
  for (std::int64_t step = 1; step <= 3; ++step) writer.start(example(step), step == 1);
  writer.finish();
  EXPECT_EQ(newest_path(folder_), checkpoint_path(folder_, 3));
  fs::resize_file(checkpoint_path(folder_, 3), 3000);
  flip_byte(checkpoint_path(folder_, 2), offset_of(checkpoint_path(folder_, 2), "weights/lstm.weight"));
  std::ofstream(path("checkpoints/step-000000009.h5.tmp")) << "being written when the job was killed";
  std::ofstream(path("checkpoints/step-x.h5")) << "somebody's notes";
  EXPECT_EQ(newest_path(folder_), checkpoint_path(folder_, 1));
  ASSERT_EQ(warnings_.size(), 2u);
  expect_contains(warnings_[0], "step-000000003.h5");
  expect_contains(warnings_[1], "array 'weights/lstm.weight' is damaged");
}

TEST_F(CheckpointTest, DamagedOnesAloneAreAnErrorThatNamesThemAndRemovesNone) {
  CheckpointWriter writer(folder_, 2);
  for (const std::int64_t step : {1, 2}) writer.start(example(step), false);
  writer.finish();
  fs::resize_file(checkpoint_path(folder_, 1), 0);
  fs::resize_file(checkpoint_path(folder_, 2), 3000);
  std::ofstream(path("checkpoints/best.h5")) << "not HDF5";
  const std::vector<std::string> before = files_in(path("checkpoints"));
  const std::string message = message_of([&] { newest_path(folder_); });
  for (const char* part : {"none of the checkpoints can be read", "step-000000001.h5: ", "step-000000002.h5: ",
                           "best.h5: ", "copy an older checkpoint there", "remove these files"})
    expect_contains(message, part);
  EXPECT_EQ(files_in(path("checkpoints")), before);
  fs::remove_all(path("checkpoints"));
  std::ofstream(path("notes.h5")) << "no checkpoint";
  EXPECT_EQ(newest_path(folder_), "") << "a run without checkpoints can begin";
}

// A run that trains writes a newer checkpoint and removes the older ones while another command looks for the newest.
TEST_F(CheckpointTest, AFileThatDisappearsBeforeItIsReadIsNoError) {
  fs::create_directories(path("checkpoints"));
  for (const std::int64_t step : {1, 2}) write_checkpoint(checkpoint_path(folder_, step), example(step));
  fs::resize_file(checkpoint_path(folder_, 2), 3000);  // it is read first, so the run can go on meanwhile
  const Progress trains = [&](std::int64_t) {
    if (fs::exists(checkpoint_path(folder_, 3))) return;
    write_checkpoint(checkpoint_path(folder_, 3), example(3));
    for (const std::int64_t step : {1, 2}) fs::remove(checkpoint_path(folder_, step));
  };
  std::vector<std::string> warnings;
  EXPECT_EQ(read_newest_checkpoint(folder_, warnings, "", trains).value().path, checkpoint_path(folder_, 3));
  EXPECT_EQ(warnings, std::vector<std::string>());
}

TEST_F(CheckpointTest, ARunThatPassedOverADamagedOneDoesNotKeepItInsteadOfItsOwn) {
  CheckpointWriter writer(folder_, 1);
  writer.start(example(9), false);
  writer.finish();
  fs::resize_file(checkpoint_path(folder_, 9), 3000);
  writer.start(example(5), false);
  writer.finish();
  EXPECT_EQ(checkpoints_of(folder_), "step-000000005.h5 ");
}

TEST_F(CheckpointTest, TheBestIsTheLastResort) {
  CheckpointWriter writer(folder_, 1);
  writer.start(example(1), true);
  writer.start(example(2), false);
  writer.finish();
  fs::resize_file(checkpoint_path(folder_, 2), 100);
  EXPECT_EQ(newest_path(folder_), path("checkpoints/best.h5"));
}

// Every other kill waits until the writer has finished a checkpoint, however slow the machine is. The random time after
// that covers several writes on a fast one.
TEST_F(CheckpointTest, AKillAtAnyMomentLeavesAWholeNewestFile) {
  const auto wait_for = [](const std::function<bool()>& condition) {
    for (int tick = 0; tick < 600'000; ++tick) {
      if (condition()) return;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    FAIL() << "the writer has written nothing in a minute";
  };
  const auto is_writing = [this] {
    return fs::exists(path("checkpoints")) &&
           std::ranges::any_of(files_in(path("checkpoints")), [](const auto& name) { return name.ends_with(".tmp"); });
  };
  const auto newest_step = [this] {
    const std::vector<std::int64_t> steps = checkpoint_steps(folder_);
    return steps.empty() ? 0 : steps.front();
  };
  int kills_in_the_middle = 0;
  std::int64_t first = 1;
  for (std::uint64_t kill = 0; kill < 25; ++kill) {
    const pid_t child = ::fork();
    if (child == 0) {
      CheckpointWriter writer(folder_, 2);
      for (std::int64_t step = first;; ++step) writer.start(example(step, 20000), step % 2 == 0);
    }
    if (kill % 2 == 1) wait_for([&] { return newest_step() >= first; });
    if (kill % 4 != 0) wait_for(is_writing);
    std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int>(60000 * random_uniform(11, kill))));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    std::vector<std::string> warnings;
    const std::optional<FoundCheckpoint> newest = read_newest_checkpoint(folder_, warnings);
    EXPECT_TRUE(warnings.empty()) << warnings.front();
    EXPECT_TRUE(first == 1 || newest) << "an earlier checkpoint was lost";
    if (!newest) continue;
    const Checkpoint& found = newest->checkpoint;
    EXPECT_GE(found.step, first - 1) << "went back to a step before an earlier checkpoint";
    expect_same_bits(example(found.step, 20000), found);
    first = found.step + 1;
    kills_in_the_middle += is_writing() ? 1 : 0;
  }
  EXPECT_GT(first, 1) << "no checkpoint was ever finished";
  EXPECT_GT(kills_in_the_middle, 0) << "no kill hit a write";
}

}  // namespace
}  // namespace ringtrain
