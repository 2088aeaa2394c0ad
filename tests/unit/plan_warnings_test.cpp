#include "run/plan_warnings.h"

#include <gtest/gtest.h>
#include <sys/mount.h>

#include "base/error.h"
#include "config/reader.h"
#include "tests/unit/good_experiment.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

class PlanWarnings : public WithFolder {
 protected:
  // The plan of the small CNN on 640 made-up images, with 10 steps an epoch.
  RunPlan plan(std::vector<std::string> overrides, const std::string& folder = "") const {
    for (const char* key : {"model.kind=cnn", "data.image_size=16", "data.classes=10", "data.train_samples=640",
                            "batch.global=64", "batch.worker=64", "stop.epochs=3", "optimizer.kind=sgd"})
      overrides.insert(overrides.begin(), key);
    overrides.push_back("run.dir=" + (folder.empty() ? path("run") : folder));
    const Experiment e = parse_experiment(good, "x.yaml", overrides);
    const DatasetIndex index = stated_index(e, "images", 640);
    return make_run_plan(e, index, nullptr, 1, *make_cpu_backend(1));
  }
  std::vector<std::string> warnings(const std::vector<std::string>& overrides, const std::string& folder = "") const {
    return plan_warnings(plan(overrides, folder));
  }
};

TEST_F(PlanWarnings, AreNoneForAnOrdinaryRun) {
  EXPECT_EQ(warnings({}), std::vector<std::string>());
  EXPECT_EQ(warnings({"learning_rate.scaling=linear", "learning_rate.base_batch=1", "learning_rate.warmup_epochs=1"}),
            std::vector<std::string>());
  EXPECT_EQ(warnings({"learning_rate.scaling=linear", "learning_rate.base_batch=16"}), std::vector<std::string>());
}

TEST_F(PlanWarnings, AWarmUpAsLongAsTheRun) {
  const auto told = warnings({"learning_rate.warmup_steps=30", "learning_rate.warmup_from=zero"});
  ASSERT_EQ(told.size(), 1u);
  expect_contains(told[0], "the warm-up takes 30 steps and the run has 30");
  expect_contains(told[0], "shorten learning_rate.warmup_steps or");
  const auto of_epochs = warnings({"learning_rate.warmup_epochs=100", "learning_rate.warmup_from=zero"});
  ASSERT_EQ(of_epochs.size(), 1u);
  expect_contains(of_epochs[0], "shorten learning_rate.warmup_epochs or");
  EXPECT_TRUE(warnings({"learning_rate.warmup_steps=29", "learning_rate.warmup_from=zero"}).empty());
}

TEST_F(PlanWarnings, AWarmUpFromTheRateThatItEndsAt) {
  const auto told =
      warnings({"learning_rate.scaling=linear", "learning_rate.base_batch=64", "learning_rate.warmup_epochs=1"});
  ASSERT_EQ(told.size(), 1u);
  expect_contains(told[0], "the warm-up changes nothing");
}

TEST_F(PlanWarnings, LinearScalingWithoutWarmUp) {
  const auto told = warnings({"learning_rate.scaling=linear", "learning_rate.base_batch=1"});
  ASSERT_EQ(told.size(), 1u);
  expect_contains(told[0], "scaled linearly, 64 times, without warm-up");
}

TEST_F(PlanWarnings, CheckpointsThatTheDiskHasNoRoomFor) {
  const std::string disk = path("disk");
  std::filesystem::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=100k") != 0) GTEST_SKIP() << "needs root to mount a small disk";
  const auto told = warnings({}, disk + "/a/b");
  ::umount(disk.c_str());
  ASSERT_EQ(told.size(), 1u);
  expect_contains(told[0], "do not fit the disk of " + disk);
}

TEST_F(PlanWarnings, CheckpointsThatAreKeptForEverNeedRoomToo) {
  const std::string disk = path("disk");
  std::filesystem::create_directory(disk);
  const std::string size = cat("size=", 5 * checkpoint_bytes(plan({})));
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, size.c_str()) != 0) GTEST_SKIP() << "needs root to mount a small disk";
  EXPECT_EQ(warnings({}, disk + "/a"), std::vector<std::string>());  // 3 checkpoints
  const auto told = warnings({"checkpoint.keep_at=[1,2,100,5 steps,15 steps,25 steps]"}, disk + "/a");
  ::umount(disk.c_str());
  ASSERT_EQ(told.size(), 1u);
  expect_contains(told[0], "up to 8 checkpoints of ");  // 100 epochs are after the end
  expect_contains(told[0], "fewer points in checkpoint.keep_at");
}

}  // namespace
}  // namespace ringtrain
