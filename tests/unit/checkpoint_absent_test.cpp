// Tests checkpoints that lack a value, and checkpoints that are whole but cannot be read.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "data/hdf5.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

class CheckpointAbsent : public WithFolder {};

TEST_F(CheckpointAbsent, WhatWasNotWrittenReadsAsItsAbsenceAndWhatWasAsItself) {
  Checkpoint written;
  written.step = 3;
  written.texts = {{"machine", "one"}};
  written.numbers = {{"loss_scale", 512.0}};
  written.arrays = {{"weights/w", {1}, {1.0f}}};
  const std::string file = path("step-000000003.h5");
  write_checkpoint(file, written);
  const Checkpoint read = read_checkpoint(file);
  EXPECT_EQ(read.text_or("machine", ""), "one");
  EXPECT_EQ(read.text_or("fusions", ""), "");
  EXPECT_EQ(read.number_or("loss_scale", 0), 512);
  EXPECT_EQ(read.number_or("loss_scale_steps", 7), 7);
}

TEST_F(CheckpointAbsent, ACountIsAnInteger) {
  Checkpoint written;
  written.numbers = {{"epoch", 12.0}, {"offset", 5}};
  EXPECT_EQ(written.whole("offset"), 5);
  EXPECT_EQ(written.number("offset"), 5.0);
  expect_contains(message_of([&] { written.whole("epoch"); }), "epoch is 12, expected an integer");
}

// A checkpoint that may not be read can still be whole. If a run skipped it, the run would resume from an older
// checkpoint and later delete this one.
TEST_F(CheckpointAbsent, OneThatMayNotBeReadIsAnErrorAndNotPassedOver) {
  const std::string folder = path("run"), newest = checkpoint_path(folder, 8);
  std::filesystem::create_directories(folder + "/checkpoints");
  Checkpoint checkpoint;
  for (const std::int64_t step : {4, 8}) {
    checkpoint.step = step;
    write_checkpoint(checkpoint_path(folder, step), checkpoint);
  }
  std::filesystem::permissions(folder_, std::filesystem::perms::all);
  std::filesystem::permissions(newest, std::filesystem::perms::none);
  const bool root = ::geteuid() == 0;  // root may read everything, so become nobody for a while
  ASSERT_EQ(root ? ::setresuid(65534, 65534, 0) : 0, 0);
  std::vector<std::string> warnings;
  const std::string message = message_of([&] { read_newest_checkpoint(folder, warnings); });
  ASSERT_EQ(root ? ::setresuid(0, 0, 0) : 0, 0);
  expect_contains(message, "step-000000008.h5: cannot read: Permission denied");
  std::filesystem::permissions(newest, std::filesystem::perms::owner_all);
  EXPECT_EQ(read_newest_checkpoint(folder, warnings).value().path, newest);
}

// A run that took it for a folder without checkpoints would begin again at step 0.
TEST_F(CheckpointAbsent, AFolderThatMayNotBeListedIsAnErrorAndNotEmpty) {
  const std::string folder = path("run");
  std::filesystem::create_directories(folder + "/checkpoints");
  write_checkpoint(checkpoint_path(folder, 4), {});
  std::filesystem::permissions(folder_, std::filesystem::perms::all);
  std::filesystem::permissions(folder + "/checkpoints", std::filesystem::perms::none);
  const bool root = ::geteuid() == 0;  // root may read everything, so become nobody for a while
  ASSERT_EQ(root ? ::setresuid(65534, 65534, 0) : 0, 0);
  std::vector<std::string> warnings;
  const std::string message = message_of([&] { read_newest_checkpoint(folder, warnings); });
  ASSERT_EQ(root ? ::setresuid(0, 0, 0) : 0, 0);
  std::filesystem::permissions(folder + "/checkpoints", std::filesystem::perms::owner_all);
  expect_contains(message, folder + "/checkpoints: cannot list the checkpoints: Permission denied");
  EXPECT_EQ(read_newest_checkpoint(folder, warnings).value().path, checkpoint_path(folder, 4));
  EXPECT_FALSE(read_newest_checkpoint(path("none"), warnings).has_value());
}

TEST_F(CheckpointAbsent, OneOfAnotherFormatIsAnErrorAndNotPassedOver) {
  const std::string folder = path("run"), newest = checkpoint_path(folder, 8);
  std::filesystem::create_directories(folder + "/checkpoints");
  write_checkpoint(checkpoint_path(folder, 4), {});
  h5::File file = h5::File::create(newest);
  file.write_attribute("/", "schema", std::string("ringtrain-checkpoint"));
  file.write_attribute("/", "format", std::int64_t{2});
  file.close();
  std::vector<std::string> warnings;
  try {
    read_newest_checkpoint(folder, warnings);
    FAIL();
  } catch (const OtherFormat& error) {
    expect_contains(error.what(), newest + ": the checkpoint has the format 2, expected the format 1");
    expect_contains(error.hint(), "use the program that wrote it");
  }
}

}  // namespace
}  // namespace ringtrain
