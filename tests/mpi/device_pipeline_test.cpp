// Compares a pipeline on (host) devices with the run of one rank on a device. Messages go through NCCL's sends and
// receives, or through host memory.
#include <gtest/gtest.h>

#include <optional>

#include "pipeline_runs.h"
#include "run/memory.h"
#include "train/evaluation.h"

namespace ringtrain {
namespace {

constexpr const char* kResNet = "{kind: resnet, depth: 18, width: 16, stem: small}";

class DevicePipelineTest : public PipelineTest {
 protected:
  // Some tests run on two ranks only, because more ranks would have to share the cores of a small machine.
  static bool has_two_ranks() { return session().size() == 2; }
  static Experiment on_devices(Experiment e, int stages, const std::string& schedule, const std::string& library) {
    e.communication.library = library;
    return as_pipeline(std::move(e), stages, schedule);
  }
  static void expect_same_run_on_devices(Experiment e, int steps, double tolerance, double first_tolerance = 1e-5,
                                         const std::vector<std::string>& schedules = {"gpipe", "1f1b"},
                                         const std::vector<std::string>& libraries = {"nccl", "mpi"}) {
    for (const std::string& library : libraries) {
      SCOPED_TRACE(library);
      e.communication.library = library;
      expect_same_run(e, steps, tolerance, first_tolerance, schedules, true);
    }
  }
};

TEST_F(DevicePipelineTest, LstmWithDropoutAndClipping) {
  expect_same_run_on_devices(text("names", {}), has_two_ranks() ? 8 : 3, 1e-4, 1e-5, {"1f1b"}, {"nccl"});
  if (has_two_ranks()) expect_same_run_on_devices(text("names", {}), 2, 1e-4, 1e-5, {"gpipe"});
}
TEST_F(DevicePipelineTest, MaskedBlanksAreCountedOnce) {
  if (!has_two_ranks()) GTEST_SKIP() << "two ranks are enough";
  expect_same_run_on_devices(text("names", {"data.blanks=masked", "batch.micro=1"}), 3, 1e-4, 1e-5, {"1f1b"}, {"nccl"});
}
TEST_F(DevicePipelineTest, CarriedStateStaysWithItsLayers) {
  expect_same_run_on_devices(text("text", streams), 3, 1e-4, 1e-5, {"1f1b"}, {"mpi"});
}
TEST_F(DevicePipelineTest, LambHasItsTensorsNorms) {
  if (!has_two_ranks()) GTEST_SKIP() << "two ranks are enough";
  expect_same_run_on_devices(text("names", {"optimizer.kind=lamb", "optimizer.weight_decay=0.01"}), 5, 1e-4, 1e-5,
                             {"1f1b"}, {"nccl"});
}
TEST_F(DevicePipelineTest, ResNetWithBatchNormByWorker) {
  if (!has_two_ranks()) GTEST_SKIP() << "two ranks are enough";
  expect_same_run_on_devices(images(kResNet, {"learning_rate.base=0.001"}), 2, 1e-3, 1e-5, {"1f1b"}, {"nccl"});
}
TEST_F(DevicePipelineTest, SmallCnnWhoseMapsAreRecomputed) {
  expect_same_run_on_devices(images("{kind: cnn}", {}), 2, 1e-4, 1e-5, {"gpipe"}, {"nccl"});
  if (has_two_ranks())
    expect_same_run_on_devices(images("{kind: cnn}", {"memory.recompute=[conv2]"}), 2, 1e-4, 1e-5, {"1f1b"}, {"mpi"});
}
TEST_F(DevicePipelineTest, RecomputedLayers) {
  if (!has_two_ranks()) GTEST_SKIP() << "two ranks are enough";
  expect_same_run_on_devices(text("names", {"memory.recompute=[lstm.l0, lstm.l2]"}), 5, 1e-4, 1e-5, {"1f1b"}, {"nccl"});
}
TEST_F(DevicePipelineTest, SixteenBitStorage) {
  if (!has_two_ranks()) GTEST_SKIP() << "two ranks are enough";
  expect_same_run_on_devices(text("names", {"precision=bf16"}), 10, 2e-2, 1e-3, {"1f1b"}, {"nccl"});
}
// If the gradient of any stage overflows, no stage may apply the update.
TEST_F(DevicePipelineTest, AllStagesSkipAnUpdateThatOverflows) {
  if (!has_two_ranks()) GTEST_SKIP() << "two ranks are enough";
  const Experiment e = text("names", {"precision=fp16", "loss_scale.initial=16777216"});
  for (const int stages : possible_stages()) {
    TrainingRank pipe(on_devices(e, stages, "1f1b", "nccl"), true);
    const Checkpoint before = pipe.snapshot();
    const StepReport report = pipe.trainer->step({});
    EXPECT_FALSE(report.applied);
    const Checkpoint after = pipe.snapshot();
    if (session().rank() == 0) {
      for (std::size_t i = 0; i < before.arrays.size(); ++i)
        if (before.arrays[i].name.starts_with("weights/")) {
          EXPECT_EQ(before.arrays[i].values, after.arrays[i].values) << before.arrays[i].name;
        }
    }
    bool applied = false;
    for (int step = 0; step < 40 && !applied; ++step) applied = pipe.trainer->step({}).applied;
    EXPECT_TRUE(applied);
  }
}

TEST_F(DevicePipelineTest, GoesOnFromARingAndARingFromIt) {
  if (session().size() == 3) GTEST_SKIP() << "two and four ranks are enough";
  if (session().size() == 1) GTEST_SKIP() << "one rank has no stages";
  const int stages = 2;
  Experiment e = text("text", streams);
  e.communication.library = "mpi";
  const Experiment piped = as_pipeline(e, stages, "1f1b");
  TrainingRank ring(e, true), pipe(piped, true);
  ring.steps(2);
  pipe.steps(2);
  const Checkpoint of_ring = ring.snapshot(), of_pipe = pipe.snapshot();
  TrainingRank as_ring(e, true, &of_pipe), from_ring(piped, true, &of_ring), again(piped, true, &of_pipe);
  for (int step = 0; step < 2; ++step) {
    const StepReport expected = pipe.trainer->step({});
    EXPECT_EQ(again.trainer->step({}).loss, expected.loss);  // equal bit for bit
    EXPECT_NEAR(as_ring.trainer->step({}).loss, expected.loss, 1e-4 * expected.loss);
    EXPECT_NEAR(from_ring.trainer->step({}).loss, expected.loss, 1e-4 * expected.loss);
  }
}

// NCCL takes whole pages of its own for the vectors that it sums. The plan's estimate includes them. The test therefore
// uses MPI, and leaves out estimates.
TEST_F(DevicePipelineTest, MemoryIsWhatWasPlanned) {
  if (session().size() == 3) GTEST_SKIP() << "two and four ranks are enough";
  if (session().size() == 1) GTEST_SKIP() << "one rank has no stages";
  for (const int stages : possible_stages())
    for (const std::string schedule : {"gpipe", "1f1b"})
      for (const Experiment& e : {text("text", streams), images("{kind: cnn}", {})}) {
        if (e.model.kind == "cnn" && !has_two_ranks()) continue;
        TrainingRank pipe(on_devices(e, stages, schedule, "mpi"), true);
        const std::int64_t before = pipe.backend->allocated_bytes();
        pipe.steps(1);
        EXPECT_EQ(pipe.backend->allocated_bytes(), before);
        std::int64_t planned = 0;
        for (const MemoryItem& item : rank_memory(pipe.plan, *pipe.backend, session().rank()))
          if (item.on_device && !item.what.ends_with("(estimate)")) planned += item.bytes;
        EXPECT_EQ(planned, before);
      }
}

TEST_F(DevicePipelineTest, EvaluatesThroughTheStages) {
  if (session().size() == 3) GTEST_SKIP() << "two and four ranks are enough";
  if (session().size() == 1) GTEST_SKIP() << "one rank has no stages";
  const int stages = 2;
  for (const std::string library : {"nccl", "mpi"})
    if (library == "nccl" || has_two_ranks()) {
      Experiment e = images("{kind: cnn}", {});
      e.data.validation = e.data.train;
      const Experiment piped = on_devices(e, stages, "1f1b", library);
      const DatasetIndex index = read_dataset_index(e.data.train);
      TrainingRank one(e, false, nullptr, true), pipe(piped, true);
      const RunPlan plan = make_run_plan(e, index, &index, 1, *one.backend);
      const RunPlan piped_plan = make_run_plan(piped, index, &index, session().size(), *pipe.backend);
      Evaluator alone(plan, make_dataset(plan.validation), *one.backend, *one.host, one.watchdog);
      Evaluator together(piped_plan, make_dataset(plan.validation), *pipe.backend, pipe.communicator(), pipe.watchdog,
                         pipe.stages.get());
      for (int round = 0; round < 2; ++round) {
        const std::optional<Evaluation> expected = alone.run(one.trainer->weights(), 0, {}, {});
        const std::optional<Evaluation> found = together.run(pipe.trainer->weights(), 0, {}, {});
        EXPECT_NEAR(found->loss, expected->loss, 1e-5 * expected->loss);
        EXPECT_EQ(found->targets, expected->targets);
        pipe.steps(1);
        one.steps(1);
      }
    }
}

}  // namespace
}  // namespace ringtrain
