// Tests how much disk space a run's checkpoints need. slurm/README.md gives the same numbers for a full disk.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include "checkpoint/writer.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

// A run folder on a disk with room for two checkpoints, but not for three.
class RoomForTwoCheckpoints : public WithFolder {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(WithFolder::SetUp());
    mounted_ = ::mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=2500k") == 0;
    if (!mounted_) GTEST_SKIP() << "needs root to mount a small disk";
  }
  void TearDown() override {
    if (mounted_) ::umount(folder_.c_str());
    WithFolder::TearDown();
  }
  // Writes a checkpoint of 1 MB for each of these steps. Returns the error, or "(no error)". `best` is the step whose
  // checkpoint is the best so far.
  std::string write(std::int64_t keep, std::vector<std::int64_t> steps, std::int64_t best = 0) {
    return message_of([&] {
      CheckpointWriter writer(folder_.string(), keep);
      for (const std::int64_t step : steps) {
        Checkpoint checkpoint;
        checkpoint.step = step;
        checkpoint.arrays = {{"weights/w", {250000}, std::vector<float>(250000, 1.0f)}};  // 1 MB
        writer.start(std::move(checkpoint), step == best);
      }
      writer.finish();
    });
  }

 private:
  bool mounted_ = false;
};

TEST_F(RoomForTwoCheckpoints, OneThatIsKeptNeedsRoomForTheNewOneBesideIt) {
  EXPECT_EQ(write(1, {1, 2, 3}), "(no error)");
}

TEST_F(RoomForTwoCheckpoints, KeepingFewerDoesNotHelpOnAFullDiskButRemovingAnOldOneDoes) {
  expect_contains(write(2, {1, 2, 3}), "No space left on device");
  expect_contains(write(1, {3}), "No space left on device");
  ::unlink(checkpoint_path(folder_.string(), 1).c_str());
  EXPECT_EQ(write(1, {3, 4}), "(no error)");
}

TEST_F(RoomForTwoCheckpoints, AnOlderBestTakesTheRoomOfOneMore) {
  expect_contains(write(1, {1, 2, 3}, 1), "No space left on device");
  ::unlink(path("checkpoints/best.h5").c_str());
  EXPECT_EQ(write(1, {3, 4}), "(no error)");
}

}  // namespace
}  // namespace ringtrain
