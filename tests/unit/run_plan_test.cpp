#include <gtest/gtest.h>

#include "config/reader.h"
#include "run/course.h"
#include "run/plan.h"
#include "run/split.h"
#include "run/task.h"
#include "tests/unit/good_experiment.h"

namespace ringtrain {
namespace {

RunPlan plan_with(const std::vector<std::string>& overrides = {}) {
  RunPlan plan;
  plan.experiment = parse_experiment(good, "x.yaml", overrides);
  plan.train.dataset_uuid = plan.validation.dataset_uuid = "1234";
  plan.train.split = "train";
  plan.validation.split = "validation";
  plan.has_validation = true;
  return plan;
}

TEST(ExperimentId, FollowsFromWhatDecidesTheResultOnly) {
  const std::string id = experiment_id(plan_with());
  EXPECT_EQ(id.size(), 16u);
  RunPlan elsewhere = plan_with({"name=other", "run.threads=3", "batch.micro=2", "data.train=elsewhere/train"});
  elsewhere.train.prefix = "elsewhere/train";
  EXPECT_EQ(experiment_id(elsewhere), id);
  EXPECT_NE(experiment_id(plan_with({"seed=2"})), id);
  EXPECT_NE(experiment_id(plan_with({"stop.epochs=11"})), id);
}

TEST(ExperimentId, FollowsFromHowNoiseIsMeasuredWhereTrainingFollowsIt) {
  EXPECT_EQ(experiment_id(plan_with({"noise.small_batch=16"})), experiment_id(plan_with()));
  const auto with_small = [](const char* small) {
    return plan_with({"optimizer.kind=sgd", "optimizer.adascale=true", "learning_rate.base_batch=8", small});
  };
  EXPECT_NE(experiment_id(with_small("noise.small_batch=16")), experiment_id(with_small("noise.small_batch=32")));
}

TEST(ExperimentId, FollowsFromTheIdentityOfBothDataSets) {
  const std::string id = experiment_id(plan_with());
  RunPlan plan = plan_with();
  plan.train.dataset_uuid = "5678";
  EXPECT_NE(experiment_id(plan), id);
  plan = plan_with();
  plan.validation.dataset_uuid = "5678";
  EXPECT_NE(experiment_id(plan), id);
  plan = plan_with();
  plan.validation.split = "train";  // the validation data are the training data
  EXPECT_NE(experiment_id(plan), id);
  plan = plan_with();
  plan.has_validation = false;
  EXPECT_NE(experiment_id(plan), id);
}

RunPlan image_plan(std::vector<std::string> overrides) {
  for (const char* key : {"model.kind=cnn", "data.image_size=16", "data.classes=10", "data.train_samples=640"})
    overrides.insert(overrides.begin(), key);
  const Experiment e = parse_experiment(good, "x.yaml", overrides);
  DatasetIndex index = stated_index(e, "images", 640);
  index.image.mean = {0.5, 0.25, 0.125};
  index.image.std = {0.25, 0.5, 1};
  return make_run_plan(e, index, nullptr, 1, *make_cpu_backend(1));
}

TEST(ImagePlan, TheKeysOfTheCropReachTheLoader) {
  const ImageTransform crop = image_plan({"data.augmentation=random_resized_crop", "data.crop_area=[0.2,0.9]",
                                          "data.crop_ratio=[0.8,1.3]", "data.resize=20", "data.flip=false"})
                                  .train_loader.image;
  EXPECT_EQ(crop.augmentation, Augmentation::random_resized_crop);
  EXPECT_EQ(crop.scale_low, 0.2);
  EXPECT_EQ(crop.scale_high, 0.9);
  EXPECT_EQ(crop.ratio_low, 0.8);
  EXPECT_EQ(crop.ratio_high, 1.3);
  EXPECT_EQ(crop.size, 16);
  EXPECT_EQ(crop.resize, 20);
  EXPECT_FALSE(crop.flip);
  const ImageTransform padded =
      image_plan({"data.augmentation=pad_crop", "data.pad=3", "data.flip=true"}).train_loader.image;
  EXPECT_EQ(padded.augmentation, Augmentation::pad_crop);
  EXPECT_EQ(padded.pad, 3);
  EXPECT_TRUE(padded.flip);
}

TEST(ImagePlan, TheModelTakesMeanAndDeviationOfTheKeysElseOfTheDataSet) {
  const auto input = [](const std::vector<std::string>& overrides) {
    return std::get<ImageInput>(image_plan(overrides).graph.nodes().at(0).operation);
  };
  const ImageInput own = input({}), stated = input({"data.mean=[0.1,0.2,0.3]", "data.std=[0.4,0.5,0.6]"});
  EXPECT_EQ(own.mean, (std::vector<double>{0.5, 0.25, 0.125}));
  EXPECT_EQ(own.std, (std::vector<double>{0.25, 0.5, 1}));
  EXPECT_EQ(stated.mean, (std::vector<double>{0.1, 0.2, 0.3}));
  EXPECT_EQ(stated.std, (std::vector<double>{0.4, 0.5, 0.6}));
}

// Returns the steps at which something is due in a run of `steps` steps, with epochs of `steps_per_epoch` steps.
std::vector<std::int64_t> due_steps(std::int64_t steps_per_epoch, std::int64_t steps, double every, double offset,
                                    std::int64_t every_steps = 0) {
  RunPlan plan;
  plan.schedule = {64, steps_per_epoch, 0};
  const auto at = [&](std::int64_t step) { return position_at(step, 64, 64 * steps_per_epoch); };
  std::vector<std::int64_t> found;
  for (std::int64_t step = 1; step <= steps; ++step)
    if (due(every, every_steps, plan, at(step - 1), at(step), offset)) found.push_back(step);
  return found;
}

// With many ranks, buckets grow if the experiment does not set their size.
TEST(Buckets, GrowWithTheRanksWhereTheExperimentDoesNotSayTheirSize) {
  constexpr std::int64_t mib = (1 << 20) / sizeof(float);
  for (const std::int64_t ranks : {1, 8, 256}) EXPECT_EQ(bucket_elements({}, false, ranks), mib) << ranks;
  EXPECT_EQ(bucket_elements({}, false, 1024), 4 * mib);
  EXPECT_EQ(bucket_elements({}, true, 4096), 16 * mib);
  EXPECT_EQ(bucket_elements({}, true, 8192), 32 * mib);
  CommunicationConfig stated;
  stated.bucket_mib = 2;
  EXPECT_EQ(bucket_elements(stated, false, 1024), 2 * mib);
}

TEST(Due, WhereALargerUpdateLeapsOverIt) {
  RunPlan plan;
  plan.schedule = {64, 10, 0};
  const Position begin{3, 192, 1, 0}, half{4, 512, 1, 320}, end{5, 832, 2, 0};
  EXPECT_TRUE(due(0.4, 0, plan, begin, half)) << "1.2 epochs";
  EXPECT_TRUE(due(0.4, 0, plan, half, end));
  EXPECT_FALSE(due(0.8, 0, plan, begin, half)) << "0.8 and 1.6 epochs";
  EXPECT_TRUE(due(0.8, 0, plan, half, end));
}

TEST(Due, AfterTheOffsetAndThenEveryInterval) {
  using Steps = std::vector<std::int64_t>;
  EXPECT_EQ(due_steps(10, 130, 4, 0), (Steps{40, 80, 120}));
  EXPECT_EQ(due_steps(10, 130, 4, 1), (Steps{10, 50, 90, 130}));  // MLPerf: every 4 epochs, the first after 1 to 4
  EXPECT_EQ(due_steps(10, 130, 4, 2), (Steps{20, 60, 100}));
  EXPECT_EQ(due_steps(10, 130, 4, 3), (Steps{30, 70, 110}));
  EXPECT_EQ(due_steps(10, 130, 4, 4), (Steps{40, 80, 120}));
  EXPECT_EQ(due_steps(10, 130, 4, 9), (Steps{90, 130}));  // an offset above the interval
  EXPECT_EQ(due_steps(10, 20, 0.5, 0.3), (Steps{3, 8, 13, 18}));
  EXPECT_EQ(due_steps(7, 30, 1, 0.5), (Steps{4, 11, 18, 25}));  // at the first step after it
  EXPECT_EQ(due_steps(10, 60, 4, 1, 25), (Steps{10, 25, 50}));
  EXPECT_EQ(due_steps(10, 60, 0, 1), Steps{});
  EXPECT_EQ(due_steps(3, 9, 1, 1), (Steps{3, 6, 9}));
}

}  // namespace
}  // namespace ringtrain
