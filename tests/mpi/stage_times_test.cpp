// Tests the times that the stages of a pipeline report when the last stage is slow. The other stages must report that
// they waited. The pipelines run in host memory and on (host) devices, where waits are queued.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/clock.h"
#include "cluster/communicator.h"
#include "pipeline_runs.h"

namespace ringtrain {
namespace {

constexpr double kSleep = 0.2;

class StageTimes : public PipelineTest {
 protected:
  void expect_bubble(bool on_device, const std::string& library) {
    SCOPED_TRACE(on_device ? library : "host");
    const int ranks = session().size();
    Experiment e = as_pipeline(text("names", {}), ranks, "1f1b");
    e.communication.library = library;
    // While the host waits for a message through host memory, a GPU goes on with its stream. With this order, the host
    // device does the same.
    const auto order = library == "mpi" ? cuda::RunOrder::Kind::at_issue : cuda::RunOrder::Kind::latest;
    TrainingRank plain(e, on_device, nullptr, false, {order, 0});
    e.test.slow_rank = ranks - 1;
    e.test.slow_seconds = kSleep;
    TrainingRank slowed(e, on_device, nullptr, false, {order, 0});
    const bool is_slow = session().rank() == ranks - 1;
    double largest_share = 0;
    for (int step = 0; step < 2; ++step) {
      const SentBytes before = sent_bytes();
      const double begin = now_seconds(), quick = plain.steps(1).front().times.bubble;
      const double middle = now_seconds();
      const StepTimes times = slowed.steps(1).front().times;
      const double end = now_seconds();
      EXPECT_GT((sent_bytes() - before).by_message, 0);
      EXPECT_GT(times.boundary, 0);
      EXPECT_LE(quick, middle - begin);
      // The other stages wait for gradients while the last stage sleeps. The last stage need not wait: its message has
      // arrived when it wakes up.
      if (!is_slow) {
        EXPECT_GE(times.bubble, 0.8 * kSleep) << "rank " << session().rank();
      }
      const double parts = times.counted();
      EXPECT_LE(parts, end - middle + 1e-3);
      EXPECT_GE(parts, 0.8 * kSleep);
      largest_share = std::max(largest_share, parts / (end - middle));
    }
    EXPECT_GE(largest_share, 0.8);  // one step is enough, because this machine may have other work
  }
};

TEST_F(StageTimes, AStageThatWaitsHasABubble) {
  if (session().size() == 1) GTEST_SKIP() << "one rank has no stages";
  expect_bubble(false, "mpi");
}
TEST_F(StageTimes, ADeviceThatWaitsHasABubble) {
  if (session().size() != 2) GTEST_SKIP() << "two ranks are enough";
  expect_bubble(true, "nccl");
  expect_bubble(true, "mpi");
}

}  // namespace
}  // namespace ringtrain
