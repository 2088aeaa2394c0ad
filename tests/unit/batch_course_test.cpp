// Tests how the batch changes over a run: batch.schedule, the last samples of an epoch, and the text of `plan`.
#include "config/batch_course.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "config/batch_plan.h"
#include "config/reader.h"
#include "run/course.h"
#include "run/passes.h"
#include "run/task.h"
#include "tests/unit/good_experiment.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

// Returns the recipe of Smith et al. 2018 for CIFAR-10. At epochs 60, 120 and 160 the batch grows by a factor of 5, and
// at most to 5,120. A usual recipe would divide the rate by 5 at these epochs.
BatchConfig smith() {
  BatchConfig batch;
  batch.global = 128;
  batch.worker = 64;
  batch.schedule = {{60, 5}, {120, 25}, {160, 125}};
  batch.largest = 5120;
  return batch;
}

TEST(BatchCourse, SmithsRecipeGrowsToTheLargestBatchAndThenDividesTheRate) {
  const BatchCourse course = batch_course(smith(), 50000, false, 49920);
  const auto at = [&](std::int64_t epoch, std::int64_t offset) { return course.stage_at({0, 0, epoch, offset}); };
  EXPECT_EQ(course.batch_at({}), 128);
  EXPECT_EQ(at(59, 49792).batch, 128);
  EXPECT_EQ(at(60, 0).batch, 640);
  EXPECT_EQ(at(119, 49280).batch, 640);
  EXPECT_EQ(at(120, 0).batch, 3200);
  EXPECT_EQ(at(120, 0).rate_factor, 1);
  EXPECT_EQ(at(160, 0).batch, 5120);
  EXPECT_EQ(at(1000, 0).rate_factor, 5120.0 / 16000);
  EXPECT_EQ(batches_on_course(smith()), (std::vector<std::int64_t>{128, 640, 3200, 5120}));
}

TEST(BatchCourse, AFractionOfAnEpochIsOneOfItsSamples) {
  BatchConfig batch;
  batch.global = 20;
  batch.schedule = {{1.3, 2}};
  const BatchCourse course = batch_course(batch, 109, false, 100);
  EXPECT_EQ(course.batch_at({0, 0, 1, 29}), 20);
  EXPECT_EQ(course.batch_at({0, 0, 1, 30}), 40) << "the sample that is meant, not the one after it";
  EXPECT_EQ(course.batch_at({0, 0, 2, 0}), 40);
}

// The epoch has 100 samples. After two batches of 20, the batch becomes 40. After 20 + 20 + 40 samples, the remaining
// 20 fill no batch of 40, so the epoch is over. In the other course the batch becomes 20, and the 20
// samples fill one batch.
TEST(BatchCourse, TheNextBatchDecidesWhetherAnEpochIsOver) {
  const BatchCourse course{100, false, {{.batch = 20}, {.offset = 40, .batch = 40}}};
  Position p = course.after(course.after({}));
  EXPECT_EQ(p, (Position{2, 40, 0, 40}));
  EXPECT_EQ(course.after(p), (Position{3, 80, 1, 0}));
  const BatchCourse later{100, false, {{.batch = 40}, {.offset = 80, .batch = 20}}};
  p = later.after(later.after({}));
  EXPECT_EQ(p, (Position{2, 80, 0, 80}));
  EXPECT_EQ(later.after(p), (Position{3, 100, 1, 0}));
  EXPECT_EQ(course.settled({5, 180, 0, 80}), (Position{5, 180, 1, 0})) << "as after a resume with another schedule";
}

TEST(BatchCourse, WhatIsLeftOfAnEpochIsASmallerBatch) {
  const BatchCourse course = constant_course(20, 109, true);
  Position p;
  std::vector<std::int64_t> sizes;
  while (p.epoch == 0) {
    sizes.push_back(course.samples_at(p));
    EXPECT_EQ(course.batch_at(p), 20);
    p = course.after(p);
  }
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{20, 20, 20, 20, 20, 9}));
  EXPECT_EQ(p, (Position{6, 109, 1, 0}));
}

// Calls batch_plan() once, and checks resized() for every batch of the course. Returns "", or the error and its hint.
std::string refusal(const BatchConfig& batch, std::int64_t ranks, std::int64_t small_batch = 0) {
  try {
    const BatchPlan plan = batch_plan(batch, ranks, 64, false, small_batch);
    for (const std::int64_t b : batches_on_course(batch)) {
      const BatchPlan p = resized(plan, b);
      EXPECT_EQ(p.ranks * p.accumulation * p.micro_batch, b);
      EXPECT_EQ(p.workers * p.worker, b);
      EXPECT_EQ(p.micro_batch, plan.micro_batch);
    }
    return "";
  } catch (const Error& error) {
    return cat(error.what(), " | ", error.hint());
  }
}

TEST(BatchCourse, RanksDivideTheWorkersOfEveryBatch) {
  EXPECT_EQ(refusal(smith(), 1), "");
  EXPECT_EQ(refusal(smith(), 2), "");
  BatchConfig batch = smith();
  batch.global = 256;
  batch.schedule = {{1, 1.5}};
  EXPECT_EQ(refusal(batch, 2), "") << "4 and 6 workers, in micro-batches that divide both shares";
  EXPECT_EQ(refusal(batch, 4),
            "4 ranks do not divide the 6 virtual workers (the batch of 384 / batch.worker 64) | Numbers of ranks that "
            "do: 1, 2.");
  batch.micro = 128;
  EXPECT_EQ(refusal(batch, 2),
            "batch.micro 128 does not divide the 64 common rows of each of 2 ranks | Values of batch.micro that do: 1, "
            "2, 4, 8, 16, 32, 64; 0 leaves the choice to the backend.");
  batch.micro = 0;
  EXPECT_EQ(refusal(batch, 1, 256),
            "noise.small_batch 256 does not divide the 384 rows of each of 1 ranks at the batch of 384 | Numbers of "
            "ranks that work: 1; noise.small_batch=0 measures what a rank does in one pass.");
}

TEST(BatchCourse, ABatchThatFollowsTheNoiseDoublesUpToTheLargest) {
  BatchConfig batch;
  batch.global = 24;
  batch.follow_noise = 1;
  batch.largest = 200;
  EXPECT_EQ(batches_on_course(batch), (std::vector<std::int64_t>{24, 48, 96, 192}));
}

// The plan of a run on images. No image files are needed, because no pixel is read.
RunPlan planned(const std::vector<std::string>& overrides, std::int64_t samples) {
  RunTask task;
  task.experiment = parse_experiment(good, "x.yaml", overrides);
  task.experiment.data.classes = 10;
  task.experiment.data.image_size = 8;
  task.train = stated_index(task.experiment, "x", samples);
  const BatchConfig& batch = task.experiment.batch;
  const RunSplit split{.shares = batch_shares(batch, 1, false)};
  const MicroBatchChoice micro_batch{nearest_micro_batch(split.shares, 16), "", false};
  const RunCourse course = plan_course(task.experiment, task.train, 1);
  return {task, course, split, passes_of(task, course, split, {}, micro_batch)};
}

// Counts the updates of a run by going from one update to the next.
std::int64_t updates_of(const RunPlan& plan) {
  Position p;
  while (!is_over(plan, p)) p = plan.course.after(p);
  return p.step;
}

TEST(RunCourse, TheNumberOfUpdatesIsThatOfGoingThroughThemOneByOne) {
  using Keys = std::vector<std::string>;
  const std::string schedule = "batch.schedule=[[1,2],[2.4,3],[4,4.5]]";
  for (const std::string last : {"data.last_batch=drop", "data.last_batch=smaller"})
    for (const std::int64_t samples : {640, 700, 1000, 12345})
      for (const std::string stop : {"stop.epochs=9", "stop.epochs=4.3", "stop.steps=31"})
        for (const Keys& keys :
             {Keys{last, stop}, Keys{last, stop, schedule}, Keys{last, stop, schedule, "batch.largest=192"}}) {
          const RunPlan plan = planned(keys, samples);
          EXPECT_EQ(plan.updates, updates_of(plan)) << samples << " " << stop << " " << last << " " << keys.size();
        }
}

// An epoch has 1,000 samples. A batch of 64 makes 15 steps in the first epoch. A batch of 128 makes 7 steps in each of
// the next two. A batch of 320 is limited to 256 and makes 3 steps in each of the other seven.
TEST(RunCourse, PlanShowsBatchPassesRateAndSteps) {
  const RunPlan plan = planned({"batch.schedule=[[1,2],[3,5]]", "batch.largest=256", "learning_rate.base=0.1"}, 1000);
  EXPECT_EQ(plan.updates, 15 + 2 * 7 + 7 * 3);
  EXPECT_EQ(plan.schedule.total_steps, 150) << "schedules count steps of the first batch";
  const std::string text = describe_batch_course(plan);
  for (const char* part : {"from epoch 0", "64 samples, 4 micro-steps, rate 0.1, 15 steps", "from epoch 1",
                           "128 samples, 8 micro-steps, rate 0.1, 14 steps", "from epoch 3",
                           "256 samples, 16 micro-steps, rate 0.08, 21 steps"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  EXPECT_EQ(describe_batch_course(planned({}, 1000)), "") << "nothing to show";
}

TEST(RunCourse, PlanShowsHowFarABatchThatFollowsTheNoiseMayGo) {
  const RunPlan plan =
      planned({"batch.follow_noise=1", "batch.largest=256", "noise.small_batch=16", "batch.patience=5000"}, 1000);
  EXPECT_EQ(plan.updates, 0) << "not known";
  const std::string text = describe_batch_course(plan);
  for (const char* part : {"64 samples", "128 samples", "256 samples", "5,000 samples", "from 30 to 150"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
}

TEST(RunCourse, AnEpochThatTakesAllItsSamplesHasItsStepsRoundedUpAndTheRateOfTheSamplesSeen) {
  const RunPlan plan = planned(
      {"data.last_batch=smaller", "learning_rate.schedule=polynomial", "learning_rate.power=1", "learning_rate.base=1"},
      100);
  EXPECT_EQ(plan.schedule.steps_per_epoch, 2);
  EXPECT_EQ(plan.updates, 20);
  Position p;
  for (const double seen : {0.0, 64.0, 100.0, 164.0, 200.0}) {
    EXPECT_DOUBLE_EQ(rate_at(plan, p), 1 - seen / 1000);
    EXPECT_DOUBLE_EQ(plan.schedule.epochs(p), seen / 100);
    p = plan.course.after(p);
  }
}

// The rates of all updates of a run, by going from one update to the next as training does.
std::vector<double> rates_of(const RunPlan& plan) {
  std::vector<double> rates;
  for (Position p; !is_over(plan, p); p = plan.course.after(p)) rates.push_back(rate_at(plan, p));
  return rates;
}

std::string random_word(std::mt19937& random, const std::vector<std::string>& words) {
  return words[random() % words.size()];
}

// Keys of the schedule, chosen at random. Some contradict each other.
std::vector<std::string> random_keys(std::mt19937& random) {
  std::vector<std::string> keys = {"learning_rate.base_batch=16", "learning_rate.end=0", "stop.steps=0"};
  const std::string scaling = random_word(random, {"none", "linear", "sqrt", "legw"});
  const std::string schedule =
      random_word(random, {"constant", "step", "polynomial", "cosine", "exponential", "points"});
  keys.push_back("learning_rate.scaling=" + scaling);
  keys.push_back("learning_rate.schedule=" + schedule);
  keys.push_back(random_word(
      random, {"learning_rate.warmup_epochs=0", "learning_rate.warmup_epochs=1", "learning_rate.warmup_epochs=0.7",
               "learning_rate.warmup_epochs=2.5", "learning_rate.warmup_steps=3", "learning_rate.warmup_steps=17"}));
  keys.push_back(random_word(random, {"learning_rate.warmup_from=zero", "learning_rate.warmup_from=base"}));
  keys.push_back(random_word(random, {"learning_rate.every=step", "learning_rate.every=epoch"}));
  if (schedule == "step")
    keys.push_back("learning_rate.milestones=" + random_word(random, {"[3]", "[2.5,4]", "[0.3,1,5.2]"}));
  if (schedule == "points")
    keys.push_back("learning_rate.points=" +
                   random_word(random, {"[[0,0],[2,1],[6,0.1]]", "[[1,1],[1,0.5],[3.3,0.2]]"}));
  keys.push_back(random_word(random, {"data.last_batch=drop", "data.last_batch=smaller"}));
  keys.push_back(
      random_word(random, {"batch.schedule=[]", "batch.schedule=[[1,4]]", "batch.schedule=[[0.6,2],[2.4,3]]"}));
  keys.push_back(random_word(random, {"stop.epochs=6", "stop.epochs=7.3", "stop.epochs=6.5"}));
  if (random() % 2 == 0) keys.push_back(random_word(random, {"stop.steps=1", "stop.steps=40", "stop.steps=61"}));
  return keys;
}

// Each row of the table of `plan` names an update of the run and has the rate of this update. After the warm-up, the
// schedules constant and step change the rate only at rows, so all updates from a row to the next one must have the
// row's rate.
TEST(RunCourse, TheTableOfRatesIsThatOfTheRun) {
  std::mt19937 random(7);
  int runs = 0;
  for (int i = 0; i < 1500; ++i) {
    const std::vector<std::string> keys = random_keys(random);
    RunPlan plan;
    try {
      plan = planned(keys, std::vector<std::int64_t>{640, 700, 1000, 1279}[random() % 4]);
    } catch (const Error&) {
      continue;
    }
    ++runs;
    std::string text = cat(plan.samples_per_epoch);
    for (const std::string& key : keys) text += " " + key;
    const std::vector<double> rates = rates_of(plan);
    const std::vector<RateChange> changes = rate_changes(plan);
    ASSERT_FALSE(changes.empty()) << text;
    EXPECT_EQ(changes.front().step, 0) << text;
    EXPECT_EQ(changes.back().step, std::ssize(rates) - 1) << text;
    for (const RateChange& c : changes) {
      ASSERT_LT(c.step, std::ssize(rates)) << text;
      EXPECT_EQ(c.rate, rates[static_cast<std::size_t>(c.step)]) << text << "\n" << describe_learning_rate(plan);
    }
    const std::string& schedule = plan.experiment.learning_rate.schedule;
    for (std::size_t k = 0; k < changes.size(); ++k) {
      const auto at = rates.begin() + changes[k].step;
      if (changes[k].what.starts_with("peak")) {
        EXPECT_EQ(std::find(rates.begin(), rates.end(), changes[k].rate), at) << text << "\n"
                                                                              << describe_learning_rate(plan);
      }
      if (changes[k].what.starts_with("start of warm-up") || (schedule != "constant" && schedule != "step")) continue;
      const auto end = k + 1 < changes.size() ? rates.begin() + changes[k + 1].step : rates.end();
      EXPECT_EQ(std::count(at, end, changes[k].rate), end - at) << text << "\n" << describe_learning_rate(plan);
    }
  }
  EXPECT_GT(runs, 375);
}

// The first epoch has 22 steps of 64. Each later epoch has 5 steps of 256 and one of 128. The warm-up of 1.5 epochs has
// 33 steps of 64. The first epoch and two steps of 256 are 30 of them. After the third step of 256 they are 34, so the
// next update is the first with the peak.
TEST(RunCourse, TheTableOfRatesCountsTheUpdatesOfTheRun) {
  const RunPlan plan = planned({"batch.schedule=[[1,4]]", "data.last_batch=smaller", "learning_rate.warmup_epochs=1.5",
                                "learning_rate.warmup_from=zero", "learning_rate.base=1", "stop.epochs=3"},
                               22 * 64);
  const std::vector<RateChange> changes = rate_changes(plan);
  ASSERT_EQ(changes.size(), 3u);
  EXPECT_EQ(changes[1].what, "peak");
  EXPECT_EQ(changes[1].step, 22 + 3);
  EXPECT_EQ(changes[1].rate, 1);
  EXPECT_EQ(changes[2].step, 22 + 6 + 5);
  EXPECT_EQ(changes[2].what, "last update");
  EXPECT_NE(describe_learning_rate(plan).find("step 25 (epoch 1.54545)"), std::string::npos)
      << describe_learning_rate(plan);
}

TEST(RunCourse, ADecayEndsOneStepAfterTheLastUpdate) {
  const std::string table = describe_learning_rate(planned(
      {"learning_rate.schedule=cosine", "learning_rate.end=0.0002", "stop.epochs=2", "data.last_batch=smaller"}, 700));
  EXPECT_NE(table.find("  step 22 (epoch 2)"), std::string::npos)
      << table;  // an epoch has 10 steps of 64 and one of 60
  EXPECT_NE(table.find("0.0002  end\n"), std::string::npos) << table;
}

TEST(RunCourse, ABatchThatOutgrowsTheEpochIsRefused) {
  EXPECT_NE(message_of([] { planned({"batch.schedule=[[1,16]]"}, 1000); }).find("the batch may grow to 1024"),
            std::string::npos);
}

}  // namespace
}  // namespace ringtrain
