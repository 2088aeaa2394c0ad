// Tests runs whose batch changes by its schedule, with the noise scale, or at the end of an epoch. They run on the CPU
// and on (host) devices, on any number of ranks.
#include "training_rank.h"

namespace ringtrain {
namespace {

class BatchOfARun : public TrainerTest {
 protected:
  Experiment with(Settings more) const {
    more.insert(more.begin(), {"batch.global=240", "batch.worker=20", "batch.micro=20", "optimizer.kind=sgd",
                               "optimizer.clip_norm=0", "learning_rate.base=0.1"});
    return experiment("names", more);
  }
};

// Resumes from a checkpoint after each of the first `count` steps. Each resumed run must equal the uninterrupted run.
void expect_resumes_anywhere(const Experiment& e, bool on_device, int count) {
  TrainingRank whole(e, on_device);
  std::vector<Checkpoint> checkpoints;
  std::vector<StepReport> expected;
  for (int i = 0; i < count; ++i) {
    checkpoints.push_back(whole.snapshot());
    expected.push_back(whole.trainer->step({}));
  }
  for (std::size_t from = on_device ? 5 : 0; from < checkpoints.size(); from += on_device ? 5 : 1) {
    TrainingRank resumed(e, on_device, &checkpoints[from]);
    for (std::size_t i = from; i < expected.size(); ++i) {
      const StepReport report = resumed.trainer->step({});
      ASSERT_EQ(report.position, expected[i].position) << "from " << from;
      EXPECT_EQ(report.samples, expected[i].samples);
      EXPECT_EQ(report.loss, expected[i].loss);
      EXPECT_EQ(report.gradient_norm, expected[i].gradient_norm);
    }
    EXPECT_EQ(resumed.weights(), whole.weights()) << "from " << from;
  }
}

const Settings schedule = {"batch.schedule=[[0.5,2],[1,3]]", "batch.largest=480"};

TEST_F(BatchOfARun, AfterAChangeItIsARunOfTheLargerBatch) {
  for (const bool on_device : {false, true}) {
    const Experiment e = with({"batch.schedule=[[1,2]]"});
    TrainingRank run(e, on_device);
    std::vector<StepReport> before;
    while (run.trainer->position().epoch == 0) before.push_back(run.trainer->step({}));
    EXPECT_EQ(std::ssize(before), run.plan.schedule.steps_per_epoch);
    const Checkpoint checkpoint = run.snapshot();
    TrainingRank large(with({"batch.global=480"}), on_device, &checkpoint);
    for (int i = 0; i < 3; ++i) {
      const StepReport report = run.trainer->step({}), expected = large.trainer->step({});
      EXPECT_EQ(report.samples, 480);
      EXPECT_EQ(report.position, expected.position);
      EXPECT_EQ(report.loss, expected.loss);
      EXPECT_EQ(report.gradient_norm, expected.gradient_norm);
      EXPECT_EQ(report.learning_rate, 0.1);
    }
    EXPECT_EQ(run.weights(), large.weights());
  }
}

TEST_F(BatchOfARun, WhatTheLargestBatchCutsOffDividesTheRate) {
  TrainingRank run(with(schedule), false);
  std::int64_t seen = 0;
  while (run.trainer->position().epoch < 2) {
    const Position at = run.trainer->position();
    const StepReport report = run.trainer->step({});
    const bool first = at.epoch == 0 && 2 * at.offset < run.plan.schedule.steps_per_epoch * 240;
    EXPECT_EQ(report.samples, first ? 240 : 480);
    EXPECT_EQ(report.learning_rate, at.epoch == 0 ? 0.1 : 0.1 * (480.0 / 720));
    EXPECT_EQ(report.position.samples, seen += report.samples);
  }
}

TEST_F(BatchOfARun, IsResumedBitForBitOnEitherSideOfAChange) {
  for (const bool on_device : {false, true}) expect_resumes_anywhere(with(schedule), on_device, 7);
}

TEST_F(BatchOfARun, IsTheSameOnAnyNumberOfRanks) {
  for (const Settings& settings : {schedule, Settings{"data.last_batch=smaller"}}) {
    TrainingRank all(with(settings), false), alone(with(settings), false, nullptr, true);
    for (int i = 0; i < 7; ++i) {
      const StepReport report = all.trainer->step({}), expected = alone.trainer->step({});
      EXPECT_EQ(report.position, expected.position);
      EXPECT_NEAR(report.loss, expected.loss, 1e-5 * expected.loss);
      EXPECT_NEAR(report.gradient_norm, expected.gradient_norm, 1e-4 * expected.gradient_norm);
    }
  }
}

// With this factor any noise is large enough. The lower bound of the noise scale is known after four steps.
const Settings follows = {
    "batch.follow_noise=1000000", "batch.largest=960",   "batch.patience=700", "batch.micro=30", "batch.worker=30",
    "noise.small_batch=60",       "noise.half_life=2400"};

TEST_F(BatchOfARun, ThatFollowsTheNoiseDoublesAndBeginsNoPassOfTheBatchBefore) {
  if (session().size() > 4 || 4 % session().size() != 0) GTEST_SKIP() << "needs 1, 2 or 4 ranks";
  for (const bool on_device : {false, true}) {
    TrainingRank run(with(follows), on_device);
    std::vector<std::int64_t> batches, changes;
    std::int64_t passes = 0;
    for (int i = 0; i < 16; ++i) {
      const StepReport report = run.trainer->step({});
      batches.push_back(report.samples);
      passes += resized(run.plan.batch, report.samples).accumulation;
      const bool changed = run.trainer->batch() != report.samples;
      if (changed) changes.push_back(report.position.samples);
      if (changed && on_device) {
        EXPECT_EQ(run.passes(), passes) << "nothing to throw away";
      }
    }
    EXPECT_EQ(batches.back(), 960) << "and never more";
    EXPECT_TRUE(std::is_sorted(batches.begin(), batches.end()));
    ASSERT_EQ(changes.size(), 2u);
    EXPECT_GE(changes[0], 4 * 240 + 700);
    EXPECT_GE(changes[1] - changes[0], 480 + 700) << "a new wait";
  }
}

TEST_F(BatchOfARun, ThatFollowsTheNoiseIsResumedBitForBit) {
  if (session().size() > 4 || 4 % session().size() != 0) GTEST_SKIP() << "needs 1, 2 or 4 ranks";
  for (const bool on_device : {false, true}) expect_resumes_anywhere(with(follows), on_device, 12);
}

TEST_F(BatchOfARun, ThatFollowsTheNoiseRefusesACheckpointOfALargerBatch) {
  if (session().size() > 1) GTEST_SKIP() << "one rank is enough";
  TrainingRank run(with(follows), false);
  while (run.trainer->batch() < 960) run.trainer->step({});
  const Checkpoint checkpoint = run.snapshot();
  Settings smaller = follows;
  smaller.push_back("batch.largest=500");
  EXPECT_NE(message_of([&] { TrainingRank(with(smaller), false, &checkpoint); }).find("has grown to 960"),
            std::string::npos);
}

// The last batch of an epoch is shorter. The test compares its step with a step of a run that has this batch size and
// starts from the same position.
TEST_F(BatchOfARun, AnEpochsLastBatchIsOneOfItsTrueSize) {
  if (session().size() > 1) GTEST_SKIP() << "its runs have one rank";
  for (const char* blanks : {"counted", "masked"}) {
    const Settings common = {"batch.worker=1", "batch.micro=1", "noise.small_batch=1", cat("data.blanks=", blanks)};
    Settings smaller = common, own = common;
    smaller.push_back("data.last_batch=smaller");
    TrainingRank whole(with(smaller), false, nullptr, true);
    const std::int64_t samples = whole.plan.samples_per_epoch, rest = samples % 240;
    ASSERT_GT(rest, 1);
    own.push_back(cat("batch.global=", rest));
    while (whole.trainer->position().offset < samples - rest) whole.trainer->step({});
    const Checkpoint checkpoint = whole.snapshot();
    for (const bool on_device : {false, true}) {
      TrainingRank run(with(smaller), on_device, &checkpoint, true), other(with(own), on_device, &checkpoint, true);
      const StepReport report = run.trainer->step({}), expected = other.trainer->step({});
      EXPECT_EQ(report.samples, rest);
      EXPECT_EQ(report.position, (Position{samples / 240 + 1, samples, 1, 0}));
      EXPECT_EQ(report.loss, expected.loss);
      EXPECT_EQ(report.accuracy, expected.accuracy);
      EXPECT_EQ(report.gradient_norm, expected.gradient_norm);
      ASSERT_TRUE(report.noise && expected.noise);
      EXPECT_EQ(report.noise->estimate.trace, expected.noise->estimate.trace);
      EXPECT_EQ(report.noise->estimate.gradient, expected.noise->estimate.gradient);
      EXPECT_EQ(run.weights(), other.weights());
    }
  }
}

}  // namespace
}  // namespace ringtrain
