// Tests a rank that is slow on purpose. The other ranks wait for it, and no result changes.
#include "training_rank.h"

namespace ringtrain {
namespace {

class SlowRank : public TrainerTest {};

TEST_F(SlowRank, SleepsInItsStepsAndChangesNoBit) {
  const int slow = session().size() - 1;
  TrainingRank plain(experiment("names", {}), false);
  TrainingRank slowed(experiment("names", {cat("test.slow_rank=", slow), "test.slow_seconds=0.05"}), false);
  for (int step = 0; step < 3; ++step) {
    const StepReport expected = plain.steps(1).front(), report = slowed.steps(1).front();
    EXPECT_EQ(report.loss, expected.loss);
    EXPECT_EQ(report.gradient_norm, expected.gradient_norm);
    EXPECT_TRUE(session().rank() != slow || report.times.forward >= 0.05) << report.times.forward;
  }
  EXPECT_EQ(slowed.weights(), plain.weights());
}

TEST_F(SlowRank, IsOneOfTheRanks) {
  try {
    TrainingRank run(experiment("names", {cat("test.slow_rank=", session().size()), "test.slow_seconds=1"}), false);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              cat("test.slow_rank is ", session().size(), ", but the ranks are 0 to ", session().size() - 1));
  }
  EXPECT_THROW(experiment("names", {"test.slow_rank=0"}), Error);
  EXPECT_THROW(experiment("names", {"test.slow_seconds=1"}), Error);
}

}  // namespace
}  // namespace ringtrain
