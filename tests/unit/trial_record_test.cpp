// Tests how a trial's end is read from the files of its run.
#include "study/trial_record.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

class TrialOutcomes : public WithFolder {
 protected:
  // Writes a run that begins at step `first`, with the loss of its first step and that of all others. Returns whether
  // it ran away.
  bool ran_away(std::int64_t first, int steps, double loss, double then) const {
    std::ofstream out(path("metrics.jsonl"), std::ios::trunc);
    for (int i = 0; i < steps; ++i)
      out << cat("{\"step\": ", first + i, ", \"samples\": ", 8 * (i + 1), ", \"loss\": ", i == 0 ? loss : then, "}\n");
    out.close();
    return read_outcome(path("")).ran_away;
  }
};

TEST_F(TrialOutcomes, ARunThatEndsAboveItsFirstStepRanAway) {
  EXPECT_FALSE(ran_away(1, 40, 3.4, 3.4));
  EXPECT_TRUE(ran_away(1, 40, 3.4, 3.5));
  EXPECT_FALSE(ran_away(1, 19, 3.4, 6.7));
  EXPECT_TRUE(ran_away(1, 19, 3.4, 6.9));
  EXPECT_FALSE(ran_away(1, 1, 3.4, 0));
}

// The first loss of a trained model is as random as the others, and lies above or below their mean.
TEST_F(TrialOutcomes, ABranchRanAwayWhereItsLossIsTwiceAsHigh) {
  EXPECT_FALSE(ran_away(501, 400, 1.65, 1.70));
  EXPECT_FALSE(ran_away(501, 400, 1.65, 3.2));
  EXPECT_TRUE(ran_away(501, 400, 1.65, 3.4));
}

}  // namespace
}  // namespace ringtrain
