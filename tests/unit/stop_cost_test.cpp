#include <filesystem>
#include <fstream>

#include "checkpoint/writer.h"
#include "run/run_end.h"
#include "run/run_record.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

TEST(LeadTime, CoversTheCheckpointAndTwoStepsTwice) {
  for (const double checkpoint : {0.01, 1.0, 7.5, 300.0})
    for (const double step : {0.0, 0.2, 30.0}) {
      const int lead = lead_seconds({{1000, checkpoint}, step});
      EXPECT_GE(lead, 2 * (checkpoint + 2 * step) + 10);
      EXPECT_LT(lead, 2 * (checkpoint + 2 * step) + 20);
      EXPECT_EQ(lead % 10, 0);
    }
}

TEST(LeadTime, IsSaidWithWhatItWasMadeOf) {
  const std::string stop =
      "to stop, this run needs the time of two steps of 0.5 s and of a checkpoint (100 MiB in 1.2 s, measured in an "
      "earlier start)";
  EXPECT_EQ(describe({{100 << 20, 1.25}, 0.5}, false, false), stop);
  EXPECT_EQ(describe({{100 << 20, 1.25}, 0.5}, false, true),
            stop + ". To stop in time, this job needs --signal=USR1@20 or more");
  const std::string first = describe({{100 << 20, 40}, 0}, true, true);
  expect_contains(first, "40 s, measured now");
  expect_contains(first, "--signal=USR1@90 or more; add four times the seconds of a step, which is not measured yet");
  expect_contains(first, "SIGTERM alone usually leaves only 30 s");
}

class StopCostTest : public WithFolder {};

TEST_F(StopCostTest, OfTheNewestStartThatHasItIsFoundAgain) {
  EXPECT_FALSE(recorded_stop_cost(folder_.string()));
  record_start(folder_.string(), {});
  EXPECT_FALSE(recorded_stop_cost(folder_.string()));
  record_stop_cost(folder_.string(), {{4096, 1.5}, 0});
  record_start(folder_.string(), {});
  record_stop_cost(folder_.string(), {{4096, 1.75}, 0});
  record_stop_cost(folder_.string(), {{4096, 2.5}, 0.25});
  record_start(folder_.string(), {});  // killed before it had measured anything
  const std::optional<StopCost> cost = recorded_stop_cost(folder_.string());
  ASSERT_TRUE(cost);
  EXPECT_EQ(cost->checkpoint.bytes, 4096);
  EXPECT_EQ(cost->checkpoint.seconds, 2.5);
  EXPECT_EQ(cost->step_seconds, 0.25);
}

TEST_F(StopCostTest, OfADamagedRecordIsNotKnown) {
  std::ofstream(path("run.json")) << R"({"starts": [3, {"stop_cost": "?"}]})";
  EXPECT_FALSE(recorded_stop_cost(folder_.string()));
}

TEST_F(StopCostTest, TheWriterKnowsItsSlowestWrite) {
  CheckpointWriter writer(folder_.string(), 2);
  EXPECT_EQ(writer.slowest().bytes, 0);
  Checkpoint checkpoint;
  checkpoint.step = 1;
  checkpoint.arrays.push_back({"weights/a", {10}, std::vector<float>(10, 1.0f)});
  writer.start(checkpoint, false);
  writer.finish();
  EXPECT_EQ(writer.slowest().bytes,
            static_cast<std::int64_t>(std::filesystem::file_size(checkpoint_path(folder_.string(), 1))));
  EXPECT_GT(writer.slowest().seconds, 0);
}

}  // namespace
}  // namespace ringtrain
