#include <gtest/gtest.h>
#include <sys/mount.h>

#include "base/error.h"
#include "config/reader.h"
#include "run/memory.h"
#include "run/plan_text.h"
#include "run/task.h"
#include "tests/unit/good_experiment.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

class PlanWarnings : public WithFolder {
 protected:
  // Returns the plan of the small CNN on 640 made-up images, with 10 steps an epoch.
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

TEST_F(PlanWarnings, AModelThatSeesASmallPartOfEachPicture) {
  const auto told = warnings({"data.augmentation=none"});
  ASSERT_EQ(told.size(), 1u);
  expect_contains(told[0], "training sees only the central 16 x 16 of pictures whose short side becomes 256: 0.39 %");
  expect_contains(told[0], "data.resize=16 shows them whole");
  for (const char* resize : {"data.resize=0", "data.resize=16", "data.resize=32"})
    EXPECT_EQ(warnings({"data.augmentation=none", resize}), std::vector<std::string>());
  EXPECT_EQ(warnings({"data.augmentation=none", "data.resize=33"}).size(), 1u);
}

// Batch norm would need more samples here, and group norm more channels in a group.
TEST_F(PlanWarnings, GroupNormOfFewValues) {
  const std::vector<std::string> mlp = {"model.kind=mlp", "model.normalization=group", "batch.worker=1"};
  const auto with = [&](const std::string& widths, const std::string& groups) {
    std::vector<std::string> keys = mlp;
    keys.insert(keys.end(), {"model.widths=" + widths, "model.norm_groups=" + groups});
    return warnings(keys);
  };
  EXPECT_EQ(with("[64, 128]", "16"), std::vector<std::string>());
  const auto told = with("[64, 32]", "16");
  ASSERT_EQ(told.size(), 1u);
  expect_contains(told[0], "group norm bn2 normalises only 2 values: 2 channels x height 1 x width 1");
  expect_contains(told[0], "A smaller model.norm_groups");
  try {
    with("[64, 16]", "16");
    FAIL() << "a group of a single value";
  } catch (const Error& e) {
    expect_contains(e.what(), "group norm bn2 would normalise a single value: 1 channels x height 1 x width 1");
    expect_contains(e.hint(), "model.norm_groups");
  }
}

TEST_F(PlanWarnings, AWarmUpAsLongAsTheRun) {
  const auto told = warnings({"learning_rate.warmup_steps=30", "learning_rate.warmup_from=zero"});
  ASSERT_EQ(told.size(), 1u);
  expect_contains(told[0], "the warm-up ends at epoch 3 and the run ends at epoch 3");
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
  const auto with = [&](std::vector<std::string> keys) {
    keys.insert(keys.end(), {"learning_rate.scaling=linear", "learning_rate.base_batch=1"});
    return warnings(keys);
  };
  EXPECT_EQ(with({"optimizer.kind=rmsprop_to_sgd"}), std::vector<std::string>()) << "its transition is the warm-up";
  EXPECT_EQ(with({"learning_rate.schedule=points", "learning_rate.points=[[0,0],[1,1]]"}), std::vector<std::string>());
  EXPECT_EQ(with({"learning_rate.schedule=points", "learning_rate.points=[[0,1],[1,0.5]]"}).size(), 1u);
}

// A larger batch makes fewer steps, but the warm-up counts samples. The run has 10 + 2 x 2 steps. A
// warm-up of 2 epochs ends with the twelfth.
TEST_F(PlanWarnings, AWarmUpThatEndsAfterTheBatchHasGrown) {
  const std::vector<std::string> grows = {"batch.schedule=[[1,4]]", "learning_rate.warmup_from=zero"};
  const auto with = [&](const std::string& warmup) {
    std::vector<std::string> keys = grows;
    keys.push_back(warmup);
    return warnings(keys);
  };
  EXPECT_EQ(with("learning_rate.warmup_epochs=2"), std::vector<std::string>());
  EXPECT_EQ(with("learning_rate.warmup_steps=19"), std::vector<std::string>());
  ASSERT_EQ(with("learning_rate.warmup_steps=25").size(), 1u) << "the last update begins after 24 steps of 64 samples";
}

TEST_F(PlanWarnings, AWarmUpByEpochsReachesItsPeakInItsLastEpoch) {
  EXPECT_EQ(warnings({"learning_rate.warmup_steps=30", "learning_rate.warmup_from=zero", "learning_rate.every=epoch"}),
            std::vector<std::string>());
  EXPECT_EQ(
      warnings({"learning_rate.warmup_steps=31", "learning_rate.warmup_from=zero", "learning_rate.every=epoch"}).size(),
      1u);
}

TEST_F(PlanWarnings, AMilestoneInsideAnEpochOfARateByEpochs) {
  const std::vector<std::string> by_epochs = {"learning_rate.every=epoch", "learning_rate.schedule=step"};
  const auto with = [&](const std::string& milestones, const std::string& stop = "stop.epochs=3") {
    std::vector<std::string> keys = by_epochs;
    keys.insert(keys.end(), {"learning_rate.milestones=" + milestones, stop});
    return warnings(keys);
  };
  EXPECT_EQ(with("[1,2]"), std::vector<std::string>());
  EXPECT_EQ(with("[1.01,1.99]"), std::vector<std::string>()) << "they are rounded to steps 10 and 20";
  const auto told = with("[1,1.5]");
  ASSERT_EQ(told.size(), 1u);
  expect_contains(told[0],
                  "learning_rate.milestones has 1.5 and learning_rate.every is epoch: the rate changes at "
                  "epoch 2; give whole epochs");
  EXPECT_THROW(with("[1,2.5]"), Error) << "the rate never changes";
}

TEST_F(PlanWarnings, AnAverageThatBeginsAfterTheEnd) {
  const auto with = [&](const std::string& epoch) {
    return warnings({"stop.epochs=0", "stop.steps=20", "average.half_life=1000", "average.from_epoch=" + epoch});
  };
  EXPECT_EQ(with("1.9"), std::vector<std::string>());
  ASSERT_EQ(with("2").size(), 1u);
  expect_contains(with("2")[0], "average.from_epoch is 2 and the run ends at epoch 2");
  EXPECT_EQ(warnings({"stop.epochs=0", "stop.seconds=9", "average.half_life=1000"}), std::vector<std::string>())
      << "the end is not known";
}

TEST_F(PlanWarnings, DecayThatTakesAwayWholeWeights) {
  const auto with = [&](const std::string& decay, const std::string& by) {
    return warnings({"optimizer.kind=adamw", "learning_rate.base=0.01", "learning_rate.base_batch=16",
                     "optimizer.weight_decay=" + decay, "optimizer.weight_decay_by=" + by});
  };
  EXPECT_EQ(with("99", "step"), std::vector<std::string>());
  ASSERT_EQ(with("101", "step").size(), 1u);
  expect_contains(with("101", "step")[0], "rate x weight decay is 1.01 at the peak rate");
  EXPECT_EQ(with("24", "sample"), std::vector<std::string>());  // a step of 64 samples decays 4 times as much
  EXPECT_EQ(with("26", "sample").size(), 1u);
  EXPECT_EQ(warnings({"optimizer.kind=adamw", "learning_rate.base=0.01", "learning_rate.base_batch=64",
                      "optimizer.weight_decay=60", "optimizer.weight_decay_by=sample", "batch.follow_noise=1",
                      "batch.largest=128", "batch.worker=16", "noise.small_batch=16"})
                .size(),
            1u)
      << "the largest batch decays twice as much";
  EXPECT_EQ(warnings({"optimizer.kind=sgd", "optimizer.weight_decay=1000"}), std::vector<std::string>());
}

TEST_F(PlanWarnings, CheckpointsThatAreToBeKeptAfterTheEnd) {
  EXPECT_EQ(warnings({"checkpoint.keep_at=[0,3,30 steps]"}), std::vector<std::string>());
  const auto told = warnings({"checkpoint.keep_at=[2,1000,31 steps]"});
  ASSERT_EQ(told.size(), 1u);
  expect_contains(told[0], "checkpoint.keep_at has 1000 epochs, 31 steps, and the run ends at step 30 (epoch 3)");
  EXPECT_EQ(warnings({"checkpoint.keep_at=[1000]", "stop.epochs=0", "stop.seconds=9"}), std::vector<std::string>())
      << "the end is not known";
}

TEST_F(PlanWarnings, ValidationPicturesThatAreMuchSmallerThanTrainingPictures) {
  const auto with = [&](std::int64_t train, std::int64_t validation) {
    RunPlan p = plan({});
    p.has_validation = true;
    p.validation = p.train;
    p.validation.prefix = "smaller";
    p.validation.split = "validation";
    p.train.image.raw = p.validation.image.raw = true;
    p.train.image.height = p.train.image.width = train;
    p.validation.image.height = p.validation.image.width = validation;
    std::vector<std::string> told = plan_warnings(p);
    std::erase_if(told, [](const std::string& w) { return w.find("enlarged") == std::string::npos; });
    return told;
  };
  EXPECT_EQ(with(16, 16), std::vector<std::string>());
  ASSERT_EQ(with(16, 7).size(), 1u);
  expect_contains(with(16, 7)[0], "the pictures of smaller have 7 x 7 pixels, and data.image_size is 16: only they");
  ASSERT_EQ(with(7, 7).size(), 1u);
  expect_contains(with(7, 7)[0], "they are enlarged, which only takes time");
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
  ASSERT_EQ(told.size(), 2u);
  expect_contains(told[1], "up to 8 checkpoints of ");  // 100 epochs are after the end
  expect_contains(told[1], "fewer points in checkpoint.keep_at");
}

}  // namespace
}  // namespace ringtrain
