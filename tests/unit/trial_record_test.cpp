// Tests how a trial's end is read from the files of its run.
#include "study/trial_record.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/unit/golden.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

using TrialOutcomes = WithFolder;

// tests/e2e/test_report_verdicts.py expects the same of results/reporting/runs.py.
TEST_F(TrialOutcomes, ARunThatEndsAboveItsFirstStepAndAboveGuessingRanAway) {
  for (const nlohmann::json& run : golden("ends_diverged.json")) {
    SCOPED_TRACE(run.dump());
    std::ofstream out(path("metrics.jsonl"), std::ios::trunc);
    for (int i = 0; i < run["losses"]; ++i)
      out << nlohmann::json{{"step", run["first_step"].get<int>() + i}, {"loss", run[i == 0 ? "first" : "then"]}}
          << '\n';
    out.close();
    nlohmann::json starts = {{{"ranks", 1}}, {{"guessing_loss", run["guessing"]}}, {{"ranks", 2}}};
    std::ofstream(path("run.json")) << nlohmann::json{{"outcome", "finished"}, {"starts", starts}};
    EXPECT_EQ(read_outcome(path("")).ran_away, run["diverged"].get<bool>());
  }
}

}  // namespace
}  // namespace ringtrain
