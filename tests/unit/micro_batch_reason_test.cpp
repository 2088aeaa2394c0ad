// Tests who decides the micro-batch of a run, and the reason that `ringtrain plan` prints.
#include <gtest/gtest.h>

#include "backend/cuda/backend.h"
#include "base/cat.h"
#include "config/reader.h"
#include "run/memory.h"
#include "run/passes.h"
#include "run/plan_text.h"
#include "run/task.h"
#include "tests/emulation/host_device.h"
#include "tests/unit/good_experiment.h"

namespace ringtrain {
namespace {

using Keys = std::vector<std::string>;

class MicroBatchReason : public testing::Test {
 protected:
  RunPlan plan(Keys keys, int ranks = 1, std::int64_t recorded = 0) {
    keys.insert(keys.begin(),
                {"model.kind=resnet", "model.depth=18", "model.width=16", "model.stem=small", "data.image_size=16",
                 "data.resize=16", "data.classes=10", "data.train_samples=640", "batch.worker=4", "run.threads=1"});
    const Experiment e = parse_experiment(good, "x.yaml", keys);
    return make_run_plan(e, stated_index(e, "images", e.data.train_samples), nullptr, ranks, *backend_,
                         micro_batch_of_checkpoint(recorded));
  }
  // Returns the row of `ringtrain plan`, such as "8: batch.micro".
  std::string row(const RunPlan& p) {
    const std::string text = describe_run(p, "", {}), key = "  micro-batch ";
    const std::size_t begin = text.find_first_not_of(' ', text.find(key) + key.size());
    return text.substr(begin, text.find('\n', begin) - begin);
  }
  std::int64_t bytes(const RunPlan& p) { return limited_bytes(rank_memory(p, *backend_), *backend_); }
  std::string limit(std::int64_t bytes) {
    char text[64];
    std::snprintf(text, sizeof text, "memory.limit_gib=%.12f", static_cast<double>(bytes) / (1 << 30) + 1e-11);
    return text;
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend(1);
};

TEST_F(MicroBatchReason, TheExperimentStatesIt) {
  EXPECT_EQ(row(plan({"batch.micro=8"}, 2, 16)), "8: batch.micro");
  EXPECT_EQ(row(plan({"communication.order=fixed"}, 2, 16)), "4: batch.worker, because communication.order is fixed");
  EXPECT_EQ(row(plan({"communication.order=fixed", "batch.micro=8"})), "8: batch.micro");
}

TEST_F(MicroBatchReason, TheCheckpointHasIt) {
  EXPECT_EQ(row(plan({}, 2, 8)), "8: that of the checkpoint");
  EXPECT_NE(row(plan({}, 2, 64)), "64: that of the checkpoint") << "a rank has 32 rows";
  EXPECT_NE(row(plan({}, 2, 2)), "2: that of the checkpoint") << "batch norm needs whole workers";
}

TEST_F(MicroBatchReason, TheRanksLeaveOne) {
  EXPECT_EQ(row(plan({"batch.worker=64"}, 2, 8)), "32: a rank's part of a virtual worker, which 2 ranks share");
}

TEST_F(MicroBatchReason, TheBackendPrefersIt) {
  const std::int64_t preferred = backend_->preferred_micro_batch(plan({}).graph, Precision::fp32, {});
  ASSERT_GT(preferred, 4);
  EXPECT_EQ(row(plan({"batch.global=4"})), "4: all rows of a rank");
  EXPECT_EQ(row(plan({"noise.small_batch=4"})), "4: noise.small_batch");
  EXPECT_EQ(row(plan({"batch.global=8", "batch.schedule=[[1,1.5]]"})),
            "4: the largest that divides a rank's rows of every batch");
  EXPECT_EQ(row(plan({"data.train_samples=64000", cat("batch.global=", 8 * preferred)})),
            cat(preferred, ": the nearest to ", preferred, ", with which the processor is fastest"));
}

TEST_F(MicroBatchReason, ItFillsAPipeline) {
  EXPECT_EQ(row(plan({"parallel.kind=pipeline", "parallel.stages=2"}, 2)),
            "8: the nearest to 8, so that 8 passes fill the pipeline");
}

TEST_F(MicroBatchReason, ItIsTheLargestThatFits) {
  const std::int64_t at_8 = bytes(plan({"batch.micro=8"}));
  EXPECT_EQ(row(plan({limit(at_8)})), "8: the largest that fits below memory.limit_gib");
  EXPECT_EQ(row(plan({"memory.limit_gib=1000"})), "64: all rows of a rank") << "the limit is not the reason";
  const std::int64_t at_4 = bytes(plan({"batch.micro=4"}));
  EXPECT_EQ(row(plan({limit(at_4 - 1), "memory.recompute=auto"})), "4: the smallest, because no larger one fits");
}

class MicroBatchReasonOnAGpu : public MicroBatchReason {
 protected:
  MicroBatchReasonOnAGpu() { backend_ = cuda::make_backend(device_, {.fusions = &fusions_}); }
  ~MicroBatchReasonOnAGpu() override { backend_.reset(); }
  cuda::FusionTable fusions_;
  cuda::HostDevice device_{{.memory_bytes = std::int64_t{1} << 31}};
};

TEST_F(MicroBatchReasonOnAGpu, ItIsTheLargestThatFitsTheGpu) {
  for (const char* recompute : {"none", "auto"}) {
    const std::string text =
        row(plan({"batch.global=65536", "data.train_samples=65536", cat("memory.recompute=", recompute)}));
    EXPECT_TRUE(text.ends_with(": the largest that fits the GPU's memory")) << text;
  }
}

// With more memory, the micro-batch would be the same, so the memory is not the reason.
TEST_F(MicroBatchReasonOnAGpu, ItIsAllRowsOfARankIfTheyFit) {
  EXPECT_EQ(row(plan({})), "64: all rows of a rank");
  EXPECT_EQ(row(plan({"memory.recompute=auto"})), "64: all rows of a rank");
  EXPECT_EQ(row(plan({"memory.limit_gib=1000"})), "64: all rows of a rank");
  EXPECT_EQ(row(plan({"noise.small_batch=8"})), "8: noise.small_batch");
}

// Servers with ranks of their own do not measure the noise scale, so they need no vector for it.
TEST_F(MicroBatchReason, ServersDoNotPayForTheNoiseScale) {
  const Keys async = {"parallel.kind=server", "parallel.mode=async", "batch.global=256"};
  const auto with = [&](std::string key) {
    Keys keys = async;
    keys.push_back(std::move(key));
    return plan(keys, 2);
  };
  const RunPlan stated = with("batch.micro=64");
  EXPECT_FALSE(stated.measures_noise);
  EXPECT_EQ(row(with(limit(bytes(stated)))), "64: the largest that fits below memory.limit_gib");
}

// A reader of the plan meets its stages in the order in which they follow from each other.
TEST_F(MicroBatchReason, TheRowsOfAPlanFollowItsStages) {
  const std::string text = describe_run(plan({}, 2), "", {});
  std::size_t before = 0;
  for (const char* key : {"  model ", "  batch ", "  stop ", "  machine ", "  micro-batch ", "  memory  "}) {
    const std::size_t at = text.find(key);
    ASSERT_NE(at, std::string::npos) << key << text;
    EXPECT_GT(at, before) << key << text;
    before = at;
  }
}

}  // namespace
}  // namespace ringtrain
