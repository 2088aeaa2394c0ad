#include <gtest/gtest.h>

#include "checkpoint/resume.h"
#include "config/reader.h"
#include "config/schema_text.h"
#include "run/course.h"
#include "tests/unit/good_experiment.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

using Keys = std::vector<std::string>;

Experiment with(const Keys& keys) {
  return parse_experiment(good, "x.yaml", keys);
}

RunPlan plan_from(const Keys& keys) {
  RunPlan plan;
  plan.experiment = with(keys);
  plan.train.kind = "image";
  plan.train.dataset_uuid = "1234";
  plan.train.image.mean = {0.5, 0.5, 0.5};
  plan.train.image.std = {0.25, 0.25, 0.25};
  plan.schedule = {64, 100, total_steps(plan.experiment.stop, 100)};
  plan.course = constant_course(64, 6400);
  return plan;
}

Checkpoint checkpoint_of(const RunPlan& plan) {
  Checkpoint c;
  c.texts = {{"experiment", to_yaml(plan.experiment)}, {"train_uuid", "1234"}, {"model", model_fingerprint(plan)}};
  return c;
}

// Returns the error of check_belongs() for a run with the keys `now` and a checkpoint of a run with the keys `before`.
std::string refused_change(const Keys& before, const Keys& now) {
  return message_of([&] { check_belongs(checkpoint_of(plan_from(before)), "run/step-5.h5", plan_from(now)); });
}

TEST(ResumeRules, KeysThatGiveTheCheckpointItsMeaningStayAndAreNamedWithBothValues) {
  struct Case {
    Keys both;
    std::string key, was, is;
  };
  const std::string sgd = "optimizer.kind=sgd";
  for (const Case& c :
       {Case{{}, "seed", "1", "2"},
        {{}, "model.hidden", "128", "24"},
        {{}, "model.layers", "4", "3"},
        {{"model.kind=resnet"}, "model.depth", "50", "18"},
        {{"model.kind=resnet"}, "model.stem", "imagenet", "small"},
        {{"model.kind=resnet"}, "model.stride_in", "3x3", "1x1"},
        {{"model.kind=alexnet"}, "model.norm", "false", "true"},
        {{"model.kind=cnn"}, "model.normalization", "auto", "batch"},
        {{"model.kind=resnet", "model.normalization=group"}, "model.norm_groups", "32", "16"},
        {{}, "batch.global", "64", "128"},
        {{}, "data.sequence", "64", "32"},
        {{}, "optimizer.kind", "adam", "adamw"},
        {{sgd}, "optimizer.rate_in_momentum", "false", "true"},
        {{}, "optimizer.beta1", "0.9", "0.8"},
        {{}, "optimizer.beta2", "0.999", "0.99"},
        {{sgd, "learning_rate.base_batch=16", "noise.small_batch=16"}, "optimizer.adascale", "false", "true"},
        {{sgd, "optimizer.adascale=true", "noise.small_batch=16"}, "learning_rate.base_batch", "16", "32"}}) {
    Keys before = c.both, now = c.both;
    before.push_back(c.key + "=" + c.was);
    now.push_back(c.key + "=" + c.is);
    const std::string message = refused_change(before, now);
    expect_contains(message, cat("run/step-5.h5: the checkpoint is of another experiment: ", c.key, " is ", c.is,
                                 ", was ", c.was, " ["));
    expect_contains(message, "run.dir");
    EXPECT_EQ(refused_change(now, now), "(no error)") << c.key;
  }
  expect_contains(refused_change({}, {"seed=2", "model.hidden=24"}), "seed is 2, was 1; model.hidden is 24, was 128 [");
}

TEST(ResumeRules, OtherKeysMayChange) {
  EXPECT_EQ(refused_change({}, {"learning_rate.base=0.1", "model.dropout=0.5", "optimizer.weight_decay=0.1",
                                "optimizer.clip_norm=1", "stop.epochs=20", "precision=bf16", "data.train=elsewhere"}),
            "(no error)");
}

TEST(ResumeRules, TheScaleOfImagesStaysHoweverItIsWritten) {
  const Keys own = {"data.mean=[0.5,0.5,0.5]", "data.std=[0.25,0.25,0.25]"};
  const Keys other = {"data.mean=[0.5,0.5,0.4]", "data.std=[0.25,0.25,0.25]"};
  EXPECT_EQ(refused_change({}, own), "(no error)");
  EXPECT_EQ(refused_change(own, {}), "(no error)");
  expect_contains(refused_change(own, other), "data.mean is [0.5, 0.5, 0.4], was [0.5, 0.5, 0.5] [");
  expect_contains(refused_change(other, {}), "data.mean is [], was [0.5, 0.5, 0.4]");
}

TEST(ResumeRules, AModelOfOtherTensorsNamesTheKeysThatMayHaveChangedIt) {
  RunPlan before = plan_from({"model.kind=alexnet", "data.image_size=224"});
  before.train.image.class_ids = {"a"};  // stands for tensors that depend on the image size
  const RunPlan now = plan_from({"model.kind=alexnet", "data.image_size=160", "run.threads=2", "data.prefetch=5"});
  const std::string message = message_of([&] { check_belongs(checkpoint_of(before), "c.h5", now); });
  expect_contains(message, "c.h5: the checkpoint is of another model");
  expect_contains(message, "; data.image_size is 160, was 224 [");
}

TEST(ResumeRules, ADataSetThatHasChangedIsRefused) {
  RunPlan other = plan_from({});
  other.train.dataset_uuid = "5678";
  expect_contains(message_of([&] { check_belongs(checkpoint_of(plan_from({})), "c.h5", other); }), "has changed");
}

TEST(ResumeRules, EveryChangedKeyIsListedButTheFolder) {
  std::string listed;
  bool decides = true;
  for (const KeyChange& c : changed_keys(with({}), with({"stop.epochs=20", "stop.steps=7", "evaluate.every_epochs=2",
                                                         "learning_rate.base=0.1", "run.dir=x", "run.threads=2"}))) {
    listed += to_string(c) + "\n";
    decides = decides && c.decides_result == !(c.key.starts_with("evaluate") || c.key.starts_with("run"));
  }
  EXPECT_EQ(listed,
            "learning_rate.base: 0.001 -> 0.1\nstop.epochs: 10 -> 20\nstop.steps: 0 -> 7\n"
            "evaluate.every_epochs: 1 -> 2\nrun.threads: 0 -> 2\n");
  EXPECT_TRUE(decides);
}

TEST(ResumeRules, HowNoiseIsMeasuredDecidesWhatIsLearnedWhereTrainingFollowsIt) {
  const auto decides = [](const Keys& both, const std::string& key, const std::string& was, const std::string& is) {
    Keys before = both, now = both;
    before.push_back(key + "=" + was);
    now.push_back(key + "=" + is);
    const std::vector<KeyChange> changes = changed_keys(with(before), with(now));
    EXPECT_EQ(changes.size(), 1u);
    return changes.at(0).decides_result;
  };
  const Keys adascale = {"optimizer.kind=sgd", "optimizer.adascale=true", "learning_rate.base_batch=16"};
  EXPECT_FALSE(decides({}, "noise.small_batch", "16", "32"));
  EXPECT_TRUE(decides(adascale, "noise.small_batch", "16", "32"));
  EXPECT_FALSE(decides({}, "noise.half_life", "1000", "2000"));
  Keys stated = adascale;
  stated.push_back("noise.small_batch=16");
  EXPECT_FALSE(decides(stated, "noise.half_life", "1000", "2000")) << "AdaScale has averages of its own";
  const Keys follows = {"batch.follow_noise=1", "batch.largest=128", "noise.small_batch=16"};
  for (const char* key : {"noise.small_batch", "noise.every_steps", "noise.half_life"})
    EXPECT_TRUE(decides(follows, key, "16", "32")) << key;
}

// Returns what the user is told about the learning rate when a run resumes after `finished` steps.
std::string told(const Experiment& before, const RunPlan& plan, std::int64_t finished) {
  const ScheduleContext& schedule = plan.schedule;
  return changed_rate(before, plan,
                      position_at(finished, schedule.global_batch, schedule.steps_per_epoch * schedule.global_batch));
}

TEST(ResumeRules, AnotherLearningRateCourseIsToldWithTheRatesBeforeAndAfter) {
  const std::string cosine = "learning_rate.schedule=cosine";
  const std::string text = told(with({cosine}), plan_from({cosine, "stop.epochs=20"}), 500);
  // Half of 1000 steps are done, or a quarter of 2000. The rates are (1 + cos(pi / 2)) / 2 and (1 + cos(pi / 4)) / 2 of
  // 0.001.
  EXPECT_EQ(
      text,
      "the learning rate of finished steps would have been another, from step 2 on. Step 500 had 0.000501571. Step "
      "501 has 0.000853553 instead of 0.0005");
}

TEST(ResumeRules, AdaScalesCourseIsThatOfItsScaleInvariantSteps) {
  const Keys keys = {"optimizer.kind=sgd", "optimizer.adascale=true", "learning_rate.base_batch=16",
                     "noise.small_batch=16", "learning_rate.schedule=step"};
  Keys before = keys, now = keys;
  before.push_back("learning_rate.milestones=[6]");
  now.push_back("learning_rate.milestones=[5]");
  RunPlan plan = plan_from(now);
  plan.adascale_times = 4;
  plan.base_schedule = {16, 400, 4000};
  EXPECT_EQ(changed_rate(with(before), plan, {}, 2000.9), "");
  expect_contains(changed_rate(with(before), plan, {}, 2001.2), "from step 2001 on. Step 2001 had 0.001");
}

TEST(ResumeRules, TheSameLearningRateCourseSoFarIsNothingToTell) {
  EXPECT_EQ(told(with({}), plan_from({"stop.epochs=20"}), 500), "") << "constant";
  const std::string steps = "learning_rate.schedule=step";
  const auto change = [&](std::int64_t finished) {
    return told(with({steps, "learning_rate.milestones=[6]"}), plan_from({steps, "learning_rate.milestones=[5]"}),
                finished);
  };
  EXPECT_EQ(change(500), "") << "the milestone of the new course is ahead";
  expect_contains(change(501), "from step 501 on. Step 501 had 0.001. Step 502 has 0.0001 instead of 0.001");
}

}  // namespace
}  // namespace ringtrain
