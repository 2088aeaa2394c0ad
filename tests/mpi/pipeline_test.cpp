// Compares a pipeline with the run of one rank. Both have the same gradients and the same curve, and each can continue
// from the other's checkpoints. A pipeline uses as much memory as was planned.
#include <optional>

#include "pipeline_runs.h"
#include "run/memory.h"
#include "run/split.h"
#include "train/evaluation.h"

namespace ringtrain {
namespace {

TEST_F(PipelineTest, LstmWithDropoutAndClipping) {
  expect_same_run(text("names", {}), 8, 1e-4);
}
TEST_F(PipelineTest, MaskedBlanksAreCountedOnce) {
  expect_same_run(text("names", {"data.blanks=masked", "batch.micro=1"}), 5, 1e-4);
}
TEST_F(PipelineTest, CarriedStateStaysWithItsLayers) {
  Settings settings = streams;
  expect_same_run(text("text", settings), 8, 1e-4);
}
TEST_F(PipelineTest, LarsAndLambHaveTheirTensorsNorms) {
  expect_same_run(text("names", {"optimizer.kind=lars", "optimizer.trust_coefficient=0.5"}), 5, 1e-4);
  expect_same_run(text("names", {"optimizer.kind=lamb", "optimizer.weight_decay=0.01"}), 5, 1e-4);
}
TEST_F(PipelineTest, AveragedWeightsAreTheSame) {
  expect_same_run(text("names", {"optimizer.kind=sgd", "optimizer.schedule_free=true", "optimizer.clip_norm=0",
                                 "learning_rate.base=0.5"}),
                  5, 1e-4);
  expect_same_run(text("names", {"average.half_life=200", "optimizer.half_life.beta2=2000"}), 5, 1e-4);
}
TEST_F(PipelineTest, ResNetWithBatchNormByWorker) {
  expect_same_run(images("{kind: resnet, depth: 18, width: 16, stem: small}", {"learning_rate.base=0.001"}), 8, 2e-3);
}
TEST_F(PipelineTest, GroupNorm) {
  expect_same_run(images("{kind: resnet, depth: 8, width: 16, stem: small, normalization: group, norm_groups: 4}",
                         {"learning_rate.base=0.001"}),
                  5, 2e-3);
  expect_same_run(images("{kind: mlp, widths: [48, 32, 24], dropout: 0.2, normalization: group, norm_groups: 4}", {}),
                  5, 1e-4);
}
TEST_F(PipelineTest, SmallCnn) {
  expect_same_run(images("{kind: cnn}", {}), 8, 1e-4);
}
TEST_F(PipelineTest, DescribedNetworksWithDropout) {
  expect_same_run(images("{kind: cnn, channels: [8, 24], kernel: 5, widths: [40, 24], dropout: 0.4}", {}), 5, 1e-4);
  expect_same_run(images("{kind: mlp, widths: [48, 32, 24], dropout: 0.2}", {}), 5, 1e-4);
}
TEST_F(PipelineTest, AlexNetWithDropout) {
  if (session().size() != 2) GTEST_SKIP() << "two ranks are enough for 20 million weights";
  expect_same_run(images("{kind: alexnet, dropout: 0.5}", {}), 1, 1e-4, 1e-5, {"1f1b"});
}
TEST_F(PipelineTest, SixteenBitStorage) {
  if (make_cpu_backend(1)->describe().find("BF16") == std::string::npos) GTEST_SKIP() << "this CPU has no AVX-512 BF16";
  expect_same_run(text("names", {"precision=bf16"}), 20, 2e-2, 1e-3);
  // In bf16, rounding grows quickly here: after a third step, the momentum of some norms differs by 80 % with AMX.
  expect_same_run(images("{kind: resnet, depth: 18, width: 16, stem: small}", {"precision=bf16"}), 2, 2e-2, 2e-2);
}

TEST_F(PipelineTest, GoesOnFromARingAndARingFromIt) {
  if (session().size() == 1) GTEST_SKIP() << "one rank has no stages";
  for (const int stages : possible_stages()) {
    const Experiment e = text("text", streams), piped = as_pipeline(e, stages, "1f1b");
    TrainingRank ring(e, false), pipe(piped, false);
    ring.steps(3);
    pipe.steps(3);
    const Checkpoint of_ring = ring.snapshot(), of_pipe = pipe.snapshot();
    TrainingRank as_ring(e, false, &of_pipe), from_ring(piped, false, &of_ring), again(piped, false, &of_pipe);
    for (int step = 0; step < 3; ++step) {
      const StepReport expected = pipe.trainer->step({});
      EXPECT_EQ(again.trainer->step({}).loss, expected.loss);  // equal bit for bit
      EXPECT_NEAR(as_ring.trainer->step({}).loss, expected.loss, 1e-4 * expected.loss);
      EXPECT_NEAR(from_ring.trainer->step({}).loss, expected.loss, 1e-4 * expected.loss);
    }
  }
}

TEST_F(PipelineTest, MemoryIsWhatWasPlanned) {
  if (session().size() == 1) GTEST_SKIP() << "one rank has no stages";
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
              item.what != "activations and gradients at the cuts")
            planned += item.bytes;
        EXPECT_EQ(planned, before);
      }
}

TEST_F(PipelineTest, EvaluatesThroughTheStages) {
  if (session().size() == 1) GTEST_SKIP() << "one rank has no stages";
  for (const int stages : possible_stages()) {
    Experiment e = images("{kind: resnet, depth: 18, width: 16, stem: small}", {});
    e.data.validation = e.data.train;
    const Experiment piped = as_pipeline(e, stages, "1f1b");
    const DatasetIndex index = read_dataset_index(e.data.train);
    TrainingRank one(e, false, nullptr, true), pipe(piped, false);
    const RunPlan plan = make_run_plan(e, index, &index, 1, *one.backend);
    const RunPlan piped_plan = make_run_plan(piped, index, &index, session().size(), *pipe.backend);
    Evaluator alone(plan, make_dataset(plan.validation), *one.backend, *one.host, one.watchdog);
    Evaluator together(piped_plan, make_dataset(plan.validation), *pipe.backend, *pipe.host, pipe.watchdog,
                       pipe.stages.get());
    for (int round = 0; round < 2; ++round) {
      const std::optional<Evaluation> expected = alone.run(one.trainer->weights(), 0, {}, {});
      const std::optional<Evaluation> found = together.run(pipe.trainer->weights(), 0, {}, {});
      EXPECT_NEAR(found->loss, expected->loss, 1e-5 * expected->loss);
      EXPECT_EQ(found->targets, expected->targets);
    }
  }
}

TEST_F(PipelineTest, RefusesRanksThatTheStagesDoNotDivide) {
  if (session().size() % 5 == 0) GTEST_SKIP() << "five stages divide these ranks";
  EXPECT_THROW(TrainingRank(as_pipeline(text("names", {"model.layers=5"}), 5, "1f1b"), false), Error);
}

}  // namespace
}  // namespace ringtrain
