// Tests the trainer on (host) devices whose streams run as late as events allow. A step reports its own values although
// the next step has begun.
#include "checkpoint/resume.h"
#include "training_rank.h"

namespace ringtrain {
namespace {

class TrainerOnDevices : public TrainerTest {};

const Settings lars = {"optimizer.kind=lars", "optimizer.trust_coefficient=0.5", "optimizer.weight_decay=0.01",
                       "optimizer.record_trust_every_steps=2"};
const Settings lamb = {"optimizer.kind=lamb", "optimizer.weight_decay=0.01", "optimizer.record_trust_every_steps=2"};

const Settings muon = {"optimizer.kind=muon", "optimizer.weight_decay=0.01"};
const Settings schedule_free = {"optimizer.kind=sgd", "optimizer.schedule_free=true", "learning_rate.base=1"};
const Settings averaged = {"average.half_life=100", "average.from_epoch=0.05"};
// Every step has its own betas, because the last batch of the short epochs is smaller.
const Settings half_lives = {
    "optimizer.kind=adamw",       "optimizer.half_life.beta1=200",    "optimizer.half_life.beta2=3000",
    "optimizer.weight_decay=0.1", "optimizer.weight_decay_by=sample", "batch.schedule=[[0.03, 2]]",
    "average.half_life=100",      "average.evaluate=false",           "data.share=0.5",
    "data.last_batch=smaller"};

TEST_F(TrainerOnDevices, EveryStepReportsWhatTheCpuReports) {
  for (const auto& [data, settings] : {std::pair<std::string, Settings>{"names", {}},
                                       {"names", {"data.blanks=masked"}},
                                       {"text", streams},
                                       {"names", lars},
                                       {"names", lamb},
                                       {"names", muon},
                                       {"names", schedule_free},
                                       {"names", averaged},
                                       {"names", half_lives}}) {
    SCOPED_TRACE(data + (settings.empty() ? "" : settings.front()));
    const Experiment e = experiment(data, settings);
    TrainingRank cpu(e, false), gpu(e, true);
    for (int step = 0; step < 6; ++step) {
      const Requests requests{
          {.signal = step == 2 && session().rank() == 0 ? 1.0 : 0.0, .save = step == 4 ? 1.0 : 0.0}};
      const StepReport expected = cpu.trainer->step(requests), report = gpu.trainer->step(requests);
      EXPECT_EQ(report.position.step, step + 1);
      EXPECT_NEAR(report.loss, expected.loss, 1e-4 * expected.loss) << step;
      EXPECT_NEAR(report.accuracy, expected.accuracy, 0.02) << step;
      EXPECT_NEAR(report.gradient_norm, expected.gradient_norm, 1e-3 * expected.gradient_norm) << step;
      EXPECT_EQ(report.learning_rate, expected.learning_rate);
      EXPECT_EQ(report.requests.signal, step == 2 ? 1 : 0);
      EXPECT_EQ(report.requests.save, step == 4 ? session().size() : 0);
      EXPECT_TRUE(report.applied);
      const bool recorded = e.optimizer.record_trust_every_steps > 0 && step % 2 == 1;
      ASSERT_EQ(report.trust_ratios.size(), recorded ? cpu.plan.parameters.all().size() : 0);
      for (std::size_t i = 0; i < report.trust_ratios.size(); ++i)
        EXPECT_NEAR(report.trust_ratios[i], expected.trust_ratios[i], 1e-3f * expected.trust_ratios[i]) << i;
    }
  }
}

TEST_F(TrainerOnDevices, AStepReturnsWithTheNextOnesFirstPassUnderWayWhereItMay) {
  struct Case {
    std::string data;
    Settings settings;
    std::int64_t ahead;
  };
  // The next pass waits in two cases. A checkpoint needs the carried state of this step, and a dynamic loss scale is
  // known late.
  for (const Case& c : {Case{"names", {}, 1},
                        {"text", streams, 0},
                        {"names", {"precision=fp16"}, 0},
                        {"names", {"precision=fp16", "loss_scale.initial=8", "loss_scale.growth_steps=0"}, 1}}) {
    SCOPED_TRACE(c.data + (c.settings.empty() ? "" : c.settings.back()));
    TrainingRank run(experiment(c.data, c.settings), true);
    for (int step = 0; step < 3; ++step) {
      run.steps(1);
      EXPECT_EQ(run.passes(), (step + 1) * run.plan.batch.accumulation + c.ahead);
    }
  }
}

TEST_F(TrainerOnDevices, NoPassIsBegunBehindTheLastStep) {
  TrainingRank run(experiment("names", {"stop.steps=3"}), true);
  run.steps(3);
  EXPECT_EQ(run.passes(), 3 * run.plan.batch.accumulation);
}

TEST_F(TrainerOnDevices, ResumedIsUninterruptedBitForBit) {
  for (const auto& [data, settings] :
       {std::pair<std::string, Settings>{"names", {}},
        {"text", streams},
        {"names", {"precision=fp16"}},
        {"names", lars},
        {"names", lamb},
        {"names", muon},
        {"names", schedule_free},
        {"names", averaged},
        {"names", half_lives},
        {"names", {"optimizer.kind=rmsprop_to_sgd", "optimizer.transition_center=0.1"}}}) {
    SCOPED_TRACE(data + (settings.empty() ? "" : settings.front()));
    const Experiment e = experiment(data, settings);
    TrainingRank first(e, true);
    first.steps(3);
    const Checkpoint checkpoint = first.snapshot();
    const std::vector<StepReport> expected = first.steps(3);
    TrainingRank resumed(e, true, &checkpoint);
    const std::vector<StepReport> reports = resumed.steps(3);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(reports[i].position, expected[i].position);
      EXPECT_EQ(reports[i].loss, expected[i].loss);
      EXPECT_EQ(reports[i].gradient_norm, expected[i].gradient_norm);
    }
    EXPECT_EQ(resumed.weights(), first.weights());
    const Checkpoint a = resumed.snapshot(), b = first.snapshot();
    for (std::size_t i = 0; i < b.arrays.size(); ++i) {
      EXPECT_EQ(a.arrays[i].name, b.arrays[i].name);
      EXPECT_EQ(a.arrays[i].values, b.arrays[i].values) << b.arrays[i].name;
    }
    EXPECT_TRUE(resumed.trainer->optimizer().applied() == first.trainer->optimizer().applied());
  }
}

const Settings overflows = {"precision=fp16", "loss_scale.initial=16777216"};

// Skipped updates do not count for Adam's bias correction, neither before a checkpoint nor after it.
TEST_F(TrainerOnDevices, ResumedAfterSkippedUpdatesIsUninterruptedBitForBit) {
  const Experiment e = experiment("names", overflows);
  TrainingRank first(e, true);
  std::int64_t skipped = 0;
  while (first.trainer->optimizer().applied().updates < 2) skipped += first.steps(1).front().applied ? 0 : 1;
  ASSERT_GT(skipped, 0);
  Checkpoint checkpoint = first.snapshot();
  if (session().rank() == 0) {
    EXPECT_EQ(checkpoint.whole("applied_updates"), 2);
    EXPECT_EQ(checkpoint.number("applied_rate"), 0.01);
  }
  first.steps(3);
  TrainingRank resumed(e, true, &checkpoint);
  EXPECT_EQ(resumed.trainer->optimizer().applied().updates, 2);
  resumed.steps(3);
  EXPECT_EQ(resumed.weights(), first.weights());
}

TEST_F(TrainerOnDevices, AResumeAtAnotherRateCorrectsMomentumByTheRateThatWasApplied) {
  Settings sgd = {"optimizer.kind=sgd", "optimizer.clip_norm=0", "optimizer.rate_in_momentum=true",
                  "optimizer.momentum_correction=true"};
  Settings outside = {"optimizer.kind=sgd", "optimizer.clip_norm=0"};  // rate outside the momentum: no correction
  std::vector<std::vector<float>> weights;
  for (Settings* settings : {&sgd, &outside}) {
    TrainingRank first(experiment("names", *settings), false);
    first.steps(3);
    const Checkpoint checkpoint = first.snapshot();
    settings->push_back("learning_rate.base=0.05");
    TrainingRank resumed(experiment("names", *settings), false, &checkpoint);
    resumed.steps(2);
    weights.push_back(resumed.weights());
  }
  for (std::size_t i = 0; i < weights[0].size(); ++i) ASSERT_NEAR(weights[0][i], weights[1][i], 1e-6) << i;
}

TEST_F(TrainerOnDevices, Fp16BeginsAtItsOwnLossScaleAfterAnotherPrecisionAndGoesOnWithItAfterFp16) {
  const auto scale_after = [this](const Settings& before, const Settings& now) {
    TrainingRank first(experiment("names", before), true);
    first.steps(1);
    const Checkpoint checkpoint = first.snapshot();
    TrainingRank resumed(experiment("names", now), true, &checkpoint);
    return resumed.steps(1).front().loss_scale;
  };
  const Settings fp16 = {"precision=fp16", "loss_scale.initial=64"};
  for (const Settings& other : {Settings{"precision=fp32"}, Settings{"precision=bf16"}}) {
    SCOPED_TRACE(other[0]);
    EXPECT_EQ(scale_after(other, fp16), 64);
    EXPECT_EQ(scale_after(fp16, other), 1);
  }
  EXPECT_EQ(scale_after({"precision=fp16", "loss_scale.initial=32"}, fp16), 32);
}

// A device has begun the first pass of the next step when a trainer is set to another position, as benchmarks do. With
// a loss scale that may change, it has only the input.
TEST_F(TrainerOnDevices, StartsAgainWithoutThePassThatHasBegun) {
  for (const Settings& settings : {Settings{"batch.micro=2"}, Settings{"precision=fp16"}}) {
    SCOPED_TRACE(settings[0]);
    TrainingRank straight(experiment("names", settings), true), again(experiment("names", settings), true);
    const std::vector<StepReport> expected = straight.steps(4);
    again.steps(2);
    again.trainer->start_at(again.trainer->position());
    const std::vector<StepReport> reports = again.steps(2);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(reports[i].loss, expected[i + 2].loss) << i;
  }
}

// The position of a transition between the first two steps of an epoch must not change the result.
TEST_F(TrainerOnDevices, RmspropTurnsIntoSgdAtTheEpochOfTheRunsPosition) {
  const auto trained = [this](const std::string& center) {
    TrainingRank run(experiment("names", {"optimizer.kind=rmsprop_to_sgd", "optimizer.transition_length=1e-4",
                                          "optimizer.transition_center=" + center}),
                     false);
    EXPECT_GT(run.plan.schedule.steps_per_epoch, 4);
    run.steps(4);
    return run.weights();
  };
  EXPECT_EQ(trained("0.01"), trained("0.011"));
  EXPECT_NE(trained("0.01"), trained("1"));
}

TEST_F(TrainerOnDevices, AnOverflowIsReportedByItsStepAndHalvesTheNextOnesScale) {
  TrainingRank run(experiment("names", {"precision=fp16", "loss_scale.initial=16777216"}), true);
  const std::vector<float> before = run.weights();
  StepReport report = run.steps(1).front();
  ASSERT_FALSE(report.applied);
  EXPECT_EQ(run.weights(), before);
  for (int tries = 0; !report.applied && tries < 30; ++tries) {
    const float scale = report.loss_scale;
    report = run.steps(1).front();
    EXPECT_EQ(report.loss_scale, scale / 2);
  }
  EXPECT_TRUE(report.applied);
  EXPECT_NE(run.weights(), before);
}

TEST_F(TrainerOnDevices, ALossThatIsNotFiniteEndsTheRunBeforeAnyWeightHasChanged) {
  for (const bool on_device : {false, true})
    for (const float bad : {INFINITY, -INFINITY}) {  // with the second, the gradient's formula stays finite
      TrainingRank run(experiment("names", {}), on_device);
      std::vector<float> weights = run.weights();
      weights[static_cast<std::size_t>(run.plan.parameters.find("linear.bias").offset)] = bad;
      run.backend->copy_from_host(weights, run.trainer->weights(), 0);
      run.trainer->start_at({});
      EXPECT_THROW(run.steps(1), Error);
      EXPECT_EQ(run.weights(), weights);
    }
}

}  // namespace
}  // namespace ringtrain
