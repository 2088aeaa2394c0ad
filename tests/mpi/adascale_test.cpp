// Tests AdaScale SGD in the trainer on any number of ranks, on the CPU and on (host) devices.
#include "run/course.h"
#include "run/memory.h"
#include "run/plan_text.h"
#include "training_rank.h"

namespace ringtrain {
namespace {

class AdaScaleOfARun : public TrainerTest {};

const Settings plain = {"optimizer.kind=sgd",         "optimizer.clip_norm=0",        "learning_rate.base=0.2",
                        "learning_rate.base_batch=6", "learning_rate.schedule=step",  "learning_rate.milestones=[1]",
                        "noise.small_batch=2",        "learning_rate.warmup_steps=7", "learning_rate.warmup_from=zero"};

const Settings adascale = plain + Settings{"optimizer.adascale=true"};  // S = 4

// Returns the state that a checkpoint would hold now.
AdaScale::State state_of(const TrainingRank& run) {
  TrainerState state;
  run.trainer->save(state);
  return state.adascale;
}

void expect_same_curve(const std::vector<StepReport>& is, const std::vector<StepReport>& expected, double tolerance) {
  ASSERT_EQ(is.size(), expected.size());
  for (std::size_t i = 0; i < is.size(); ++i) {
    EXPECT_NEAR(is[i].loss, expected[i].loss, tolerance) << i;
    EXPECT_NEAR(*is[i].gain, *expected[i].gain, 10 * tolerance) << i;
    EXPECT_NEAR(is[i].scale_invariant_steps, expected[i].scale_invariant_steps, 100 * tolerance) << i;
    EXPECT_NEAR(is[i].learning_rate, expected[i].learning_rate, 10 * tolerance) << i;
  }
}

// The gradients lie in one bucket or in several buckets.
TEST_F(AdaScaleOfARun, TheGainIsTheEfficiencyOfTheMeasuredNoiseScaleTimesS) {
  for (const auto& [on_device, bucket_mib] : {std::pair{false, "0"}, {false, "0.004"}, {true, "0"}, {true, "0.004"}}) {
    TrainingRank run(experiment("names", adascale + Settings{cat("communication.bucket_mib=", bucket_mib)}), on_device);
    const StepReport first = run.trainer->step({});
    const NoiseEstimate e = first.noise->estimate;
    ASSERT_TRUE(e.trace > 0 && e.gradient > 0) << e.trace << " " << e.gradient;
    EXPECT_NEAR(*first.gain, gain(e.trace / e.gradient, 6, 4), 1e-5);
    double tau = *first.gain;
    for (const StepReport& report : run.steps(8)) {
      EXPECT_GE(*report.gain, 1);
      EXPECT_LE(*report.gain, 4);
      const double expected =
          learning_rate(run.plan.experiment.learning_rate, run.plan.base_schedule, std::floor(tau)) * *report.gain;
      EXPECT_DOUBLE_EQ(report.learning_rate, expected);
      tau += *report.gain;
      EXPECT_DOUBLE_EQ(report.scale_invariant_steps, tau);
    }
  }
}

// Over the first 1000 / S = 250 steps, the trainer takes the plain averages of the variance and of the squared norm of
// the gradient. The gain follows from these averages.
TEST_F(AdaScaleOfARun, TheGainIsOfTheAverages) {
  TrainingRank run(experiment("names", adascale), false);
  double variance = 0, gradient = 0;
  for (int t = 1; t <= 6; ++t) {
    const StepReport report = run.trainer->step({});
    variance += (std::max(1e-6, report.noise->estimate.trace / 6) - variance) / t;
    gradient += (std::max(0.0, report.noise->estimate.gradient) - gradient) / t;
    EXPECT_NEAR(*report.gain, (variance + gradient) / (variance / 4 + gradient), 1e-5) << t;
  }
}

TEST_F(AdaScaleOfARun, IsTheSameOnAnyNumberOfRanksAndDevices) {
  TrainingRank alone(experiment("names", adascale), false, nullptr, true);
  const std::vector<StepReport> expected = alone.steps(10);
  EXPECT_LT(*expected.back().gain, 4);
  for (const bool on_device : {false, true}) {
    TrainingRank together(experiment("names", adascale), on_device);
    expect_same_curve(together.steps(10), expected, 2e-4);
  }
}

TEST_F(AdaScaleOfARun, IsTheSameThroughAccumulation) {
  if (24 / session().size() % 6 != 0) GTEST_SKIP() << "a rank has no whole number of small batches";
  TrainingRank whole(experiment("names", adascale + Settings{"noise.small_batch=6", "batch.micro=6"}), false);
  const std::vector<StepReport> expected = whole.steps(8);
  for (const char* micro : {"batch.micro=1", "batch.micro=3"}) {
    TrainingRank parts(experiment("names", adascale + Settings{"noise.small_batch=6", micro}), false);
    expect_same_curve(parts.steps(8), expected, 2e-4);
  }
}

TEST_F(AdaScaleOfARun, AtTheBaseBatchItIsPlainSgdBitForBit) {
  for (const bool on_device : {false, true}) {
    const Settings at_base = {"learning_rate.base_batch=24", "noise.small_batch=0"};
    TrainingRank sgd(experiment("names", plain + at_base), on_device);
    TrainingRank scaled(experiment("names", adascale + at_base), on_device);
    const std::vector<StepReport> expected = sgd.steps(12), reports = scaled.steps(12);
    for (std::size_t i = 0; i < reports.size(); ++i) {
      EXPECT_EQ(*reports[i].gain, 1);
      EXPECT_FALSE(expected[i].gain.has_value());
      EXPECT_EQ(reports[i].learning_rate, expected[i].learning_rate) << i;
      EXPECT_EQ(reports[i].loss, expected[i].loss) << i;
    }
    EXPECT_EQ(scaled.weights(), sgd.weights());
  }
}

TEST_F(AdaScaleOfARun, HasNoLossScaleInIt) {
  TrainingRank fp32(experiment("names", adascale), true);
  const std::vector<StepReport> expected = fp32.steps(4);
  for (const char* scale : {"8", "1024"}) {
    TrainingRank fp16(experiment("names", adascale + Settings{"precision=fp16", "loss_scale.growth_steps=0",
                                                              cat("loss_scale.initial=", scale)}),
                      true);
    const std::vector<StepReport> reports = fp16.steps(4);
    for (std::size_t i = 0; i < reports.size(); ++i) EXPECT_NEAR(*reports[i].gain, *expected[i].gain, 0.02) << i;
  }
}

TEST_F(AdaScaleOfARun, ASkippedStepChangesNothing) {
  TrainingRank run(experiment("names", adascale + Settings{"precision=fp16", "loss_scale.initial=16777216"}), true);
  StepReport report = run.trainer->step({});
  ASSERT_FALSE(report.applied);
  for (; !report.applied; report = run.trainer->step({})) {
    EXPECT_FALSE(report.gain.has_value());
    EXPECT_EQ(state_of(run), AdaScale::State{});
  }
  EXPECT_EQ(report.scale_invariant_steps, *report.gain);
}

TEST_F(AdaScaleOfARun, GoesOnInMidAverageBitForBitAfterAResume) {
  for (const bool on_device : {false, true}) {
    const Experiment e = experiment("names", adascale);
    TrainingRank first(e, on_device);
    first.steps(5);
    const Checkpoint checkpoint = first.snapshot();
    const std::vector<StepReport> expected = first.steps(4);
    TrainingRank resumed(e, on_device, &checkpoint);
    const std::vector<StepReport> reports = resumed.steps(4);
    for (std::size_t i = 0; i < reports.size(); ++i) {
      EXPECT_EQ(reports[i].gain, expected[i].gain);
      EXPECT_EQ(reports[i].learning_rate, expected[i].learning_rate);
    }
    EXPECT_EQ(state_of(resumed), state_of(first));
    EXPECT_EQ(resumed.weights(), first.weights());
  }
}

// The device gets the first pass of the next step before the host has learned the gain.
TEST_F(AdaScaleOfARun, ADeviceDoesNotWaitForTheHost) {
  TrainingRank run(experiment("names", adascale), true);
  run.steps(2);
  EXPECT_EQ(run.passes(), 2 * run.plan.batch.accumulation + 1);
}

// AdaScale needs one value after the gradients, padded to 256 bytes.
TEST_F(AdaScaleOfARun, TakesTheMemoryThatIsPlanned) {
  const auto bytes_of = [&](const Settings& settings) {
    TrainingRank run(experiment("names", settings), false);
    std::int64_t planned = 0;
    for (const MemoryItem& item : rank_memory(run.plan, *run.backend)) planned += item.bytes;
    return std::pair(run.backend->allocated_bytes(), planned);
  };
  const auto off = bytes_of(plain), on = bytes_of(adascale);
  EXPECT_EQ(on.second - off.second, 256);
  EXPECT_EQ(on.first - off.first, 256);
}

TEST_F(AdaScaleOfARun, EndsWhenItsScaleInvariantEpochsAreOver) {
  TrainingRank run(experiment("names", adascale + Settings{"stop.steps=0", "stop.epochs=2"}), false);
  const auto end = static_cast<double>(run.plan.base_schedule.total_steps);
  EXPECT_EQ(end, std::llround(2.0 * static_cast<double>(run.plan.samples_per_epoch / 6)));
  EXPECT_EQ(run.plan.schedule.total_steps, 0);
  StepReport report;
  while (!has_all_steps(run.plan, report.position, report.scale_invariant_steps)) report = run.trainer->step({});
  EXPECT_GE(report.scale_invariant_steps, end);
  EXPECT_LT(report.scale_invariant_steps - *report.gain, end);
  EXPECT_GE(static_cast<double>(report.position.step), end / 4);
  EXPECT_LT(static_cast<double>(report.position.step), end);
  EXPECT_TRUE(has_all_steps(make_run_plan(experiment("names", adascale), run.plan.train, nullptr, 1, *run.backend),
                            {.step = 1000}, 0))
      << "stop.steps counts updates";
}

// `plan` prints the learning rate by scale-invariant steps. It also prints the smallest and the largest number of
// updates after which the run can end.
TEST_F(AdaScaleOfARun, ThePlanSaysBetweenHowManyStepsItEnds) {
  TrainingRank run(experiment("names", adascale + Settings{"stop.steps=0", "stop.epochs=2"}), false);
  const std::int64_t end = run.plan.base_schedule.total_steps;
  const std::string text = describe_run(run.plan, "", {}) + describe_learning_rate(run.plan);
  for (const std::string& part :
       {cat("after ", end, " scale-invariant steps (2 epochs): ", (end + 3) / 4, " to ", end, " steps"),
        std::string("AdaScale at 4 x base_batch 6"), std::string("by scale-invariant steps"),
        cat("step ", end / 2, " (epoch 1)")})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

}  // namespace
}  // namespace ringtrain
