// A pipeline is the run of one rank: the same gradients, the same curve, checkpoints that either goes on from, and as
// much memory as was planned.
#include <algorithm>
#include <cmath>
#include <optional>

#include "one_rank.h"
#include "run/stage_plan.h"
#include "tests/unit/image_shards.h"
#include "train/evaluator.h"

namespace ringtrain {
namespace {

class PipelineTest : public TrainerTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(TrainerTest::SetUp());
    write_image_shards((folder_ / "images").string(), raw_images(144, 8, 8), 2);
    write_image_shards((folder_ / "large").string(), raw_images(24, 64, 64), 2);
  }

  Experiment text(const std::string& data, Settings more) const {
    more.insert(more.begin(), "model.layers=3");
    return experiment(data, more);
  }
  Experiment images(const std::string& model, const Settings& more) const {
    const bool large = model.find("alexnet") != std::string::npos;
    return image_experiment(
        large ? "large" : "images", large ? 64 : 8,
        cat("model: ", model, "\nbatch: {global: ", large ? 12 : 36, ", worker: 3, micro: 3}\n",
            "optimizer: {kind: sgd, momentum: 0.9, weight_decay: 0.001}\n", "learning_rate: {base: 0.01}\n"),
        more);
  }
};

Experiment as_pipeline(Experiment e, int stages, const std::string& schedule) {
  e.parallel.kind = "pipeline";
  e.parallel.stages = stages;
  e.parallel.schedule = schedule;
  return e;
}

// Numbers of stages that this job's ranks divide into.
std::vector<int> possible_stages() {
  std::vector<int> all;
  for (const int stages : {2, 3, 4})
    if (session().size() % stages == 0) all.push_back(stages);
  return all;
}

// On rank 0: the largest difference of any array's element, by the array's largest element.
double distance(const Checkpoint& a, const Checkpoint& b) {
  double worst = 0;
  EXPECT_EQ(a.arrays.size(), b.arrays.size());
  for (std::size_t i = 0; i < std::min(a.arrays.size(), b.arrays.size()); ++i) {
    EXPECT_EQ(a.arrays[i].name, b.arrays[i].name);
    EXPECT_EQ(a.arrays[i].shape, b.arrays[i].shape);
    double largest = 1e-6, difference = 0;
    for (std::size_t j = 0; j < a.arrays[i].values.size(); ++j) {
      largest = std::max(largest, std::abs(static_cast<double>(a.arrays[i].values[j])));
      difference = std::max(difference, std::abs(static_cast<double>(a.arrays[i].values[j]) -
                                                 static_cast<double>(b.arrays[i].values[j])));
    }
    worst = std::max(worst, difference / largest);
  }
  return worst;
}

void expect_same_run(const Experiment& e, int steps, double tolerance, double first_tolerance = 1e-5,
                     const std::vector<std::string>& schedules = {"gpipe", "1f1b"}) {
  if (possible_stages().empty()) GTEST_SKIP() << "one rank has no stages";
  OneRank one(e);
  const std::size_t elements = one.weights().size();
  const Checkpoint begin = one.snapshot();
  std::vector<OneRank::Step> expected = one.steps(1);
  const Checkpoint after = one.snapshot();
  for (const OneRank::Step& step : one.steps(steps - 1)) expected.push_back(step);
  const Checkpoint end = one.snapshot();
  for (const int stages : possible_stages())
    for (const std::string& schedule : schedules) {
      SCOPED_TRACE(cat(stages, " stages, ", schedule));
      TrainingRank pipe(as_pipeline(e, stages, schedule), false);
      EXPECT_EQ(pipe.plan.stages(), stages);
      EXPECT_LT(pipe.trainer->weights().size(), static_cast<std::int64_t>(elements));
      // Rank 0 has the checkpoints; those of a pipeline are collective.
      const auto expect_near = [&](const Checkpoint& of_one, double limit) {
        const Checkpoint found = pipe.snapshot();
        if (session().rank() == 0) {
          EXPECT_LE(distance(of_one, found), limit);
        }
      };
      expect_near(begin, 0);
      for (std::size_t step = 0; step < expected.size(); ++step) {
        const double limit = step == 0 ? first_tolerance : tolerance;
        const OneRank::Step& of_one = expected[step];
        const StepReport report = pipe.trainer->step({});
        ASSERT_NEAR(report.loss, of_one.loss, limit * of_one.loss) << step;
        ASSERT_NEAR(report.gradient_norm, of_one.gradient_norm, limit * of_one.gradient_norm) << step;
        EXPECT_EQ(report.position, of_one.position);
        EXPECT_EQ(report.requests.signal, 0);
        if (step == 0) expect_near(after, 10 * first_tolerance);
      }
      expect_near(end, 100 * tolerance);
    }
}

TEST_F(PipelineTest, LstmWithDropoutAndClipping) {
  expect_same_run(text("names", {}), 20, 1e-4);
}
TEST_F(PipelineTest, MaskedBlanksAreCountedOnce) {
  expect_same_run(text("names", {"data.blanks=masked", "batch.micro=1"}), 5, 1e-4);
}
TEST_F(PipelineTest, CarriedStateStaysWithItsLayers) {
  Settings settings = streams;
  expect_same_run(text("text", settings), 20, 1e-4);
}
TEST_F(PipelineTest, LarsAndLambHaveTheirTensorsNorms) {
  expect_same_run(text("names", {"optimizer.kind=lars", "optimizer.trust_coefficient=0.5"}), 5, 1e-4);
  expect_same_run(text("names", {"optimizer.kind=lamb", "optimizer.weight_decay=0.01"}), 5, 1e-4);
}
TEST_F(PipelineTest, AveragedWeightsAreTheSame) {
  expect_same_run(text("names", {"optimizer.kind=sgd", "optimizer.schedule_free=true", "optimizer.clip_norm=0",
                                 "learning_rate.base=0.5"}),
                  5, 1e-4);
}
TEST_F(PipelineTest, ResNetWithBatchNormByWorker) {
  expect_same_run(images("{kind: resnet, depth: 18, width: 16, stem: small}", {"learning_rate.base=0.001"}), 20, 2e-3);
}
TEST_F(PipelineTest, SmallCnn) {
  expect_same_run(images("{kind: cnn}", {}), 20, 1e-4);
}
TEST_F(PipelineTest, AlexNetWithDropout) {
  expect_same_run(images("{kind: alexnet, dropout: 0.5}", {}), 1, 1e-4, 1e-5, {"1f1b"});  // 20 million weights
}
TEST_F(PipelineTest, SixteenBitStorage) {
  if (make_cpu_backend(1)->describe().find("BF16") == std::string::npos) GTEST_SKIP() << "a CPU without bf16";
  expect_same_run(text("names", {"precision=bf16"}), 20, 2e-2, 1e-3);
  expect_same_run(images("{kind: resnet, depth: 18, width: 16, stem: small}", {"precision=bf16"}), 3, 5e-2, 2e-2);
}

TEST_F(PipelineTest, GoesOnFromARingAndARingFromIt) {
  for (const int stages : possible_stages()) {
    const Experiment e = text("text", streams), piped = as_pipeline(e, stages, "1f1b");
    TrainingRank ring(e, false), pipe(piped, false);
    ring.steps(3);
    pipe.steps(3);
    const Checkpoint of_ring = ring.snapshot(), of_pipe = pipe.snapshot();
    TrainingRank as_ring(e, false, &of_pipe), from_ring(piped, false, &of_ring), again(piped, false, &of_pipe);
    for (int step = 0; step < 3; ++step) {
      const StepReport expected = pipe.trainer->step({});
      EXPECT_EQ(again.trainer->step({}).loss, expected.loss);  // bit for bit
      EXPECT_NEAR(as_ring.trainer->step({}).loss, expected.loss, 1e-4 * expected.loss);
      EXPECT_NEAR(from_ring.trainer->step({}).loss, expected.loss, 1e-4 * expected.loss);
    }
  }
}

TEST_F(PipelineTest, MemoryIsWhatWasPlanned) {
  for (const int stages : possible_stages())
    for (const std::string schedule : {"gpipe", "1f1b"})
      for (const Experiment& e :
           {text("text", streams), images("{kind: resnet, depth: 18, width: 16, stem: small}", {})}) {
        TrainingRank pipe(as_pipeline(e, stages, schedule), false);
        const std::int64_t before = pipe.backend->allocated_bytes();
        pipe.steps(1);
        EXPECT_EQ(pipe.backend->allocated_bytes(), before);
        std::int64_t planned = 0;
        for (const MemoryItem& item : rank_memory(pipe.plan, *pipe.backend, session().rank()))
          if (!item.what.starts_with("loader") && !item.what.starts_with("data set") &&
              !item.what.starts_with("carried") && !item.what.starts_with("checkpoint") &&
              !item.what.starts_with("what crosses"))
            planned += item.bytes;
        EXPECT_EQ(planned, before);
      }
}

TEST_F(PipelineTest, EvaluatesThroughTheStages) {
  for (const int stages : possible_stages()) {
    Experiment e = images("{kind: resnet, depth: 18, width: 16, stem: small}", {});
    e.data.validation = e.data.train;
    const Experiment piped = as_pipeline(e, stages, "1f1b");
    const DatasetIndex index = read_dataset_index(e.data.train);
    TrainingRank one(e, false, nullptr, true), pipe(piped, false);
    const RunPlan plan = make_run_plan(e, index, &index, 1, *one.backend);
    const RunPlan piped_plan = make_run_plan(piped, index, &index, session().size(), *pipe.backend);
    Evaluator alone(plan, *one.backend, *one.host, one.watchdog);
    Evaluator together(piped_plan, *pipe.backend, *pipe.host, pipe.watchdog, pipe.stages.get());
    for (int round = 0; round < 2; ++round) {
      const std::optional<Evaluation> expected = alone.run(one.trainer->weights(), 0, {}, {});
      const std::optional<Evaluation> found = together.run(pipe.trainer->weights(), 0, {}, {});
      EXPECT_NEAR(found->loss, expected->loss, 1e-5 * expected->loss);
      EXPECT_EQ(found->targets, expected->targets);
    }
  }
}

TEST_F(PipelineTest, RefusesRanksThatTheStagesDoNotDivide) {
  if (session().size() % 5 == 0) GTEST_SKIP();
  EXPECT_THROW(TrainingRank(as_pipeline(text("names", {"model.layers=5"}), 5, "1f1b"), false), Error);
}

}  // namespace
}  // namespace ringtrain
