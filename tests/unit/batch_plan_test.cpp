// Tests the arithmetic of the batch: global = workers x worker = ranks x accumulation x micro_batch.
#include "config/batch_plan.h"

#include <gtest/gtest.h>

#include <tuple>

#include "base/error.h"

namespace ringtrain {
namespace {

BatchConfig config(std::int64_t global, std::int64_t worker, std::int64_t micro = 0) {
  BatchConfig batch;
  batch.global = global;
  batch.worker = worker;
  batch.micro = micro;
  return batch;
}

// Returns the error as "what | hint", or "no error".
std::string plan_refusal(const BatchConfig& batch, std::int64_t ranks, std::int64_t preferred = 64,
                         bool whole_workers = false) {
  try {
    batch_plan(batch, ranks, preferred, whole_workers);
  } catch (const Error& error) {
    return cat(error.what(), " | ", error.hint());
  }
  return "no error";
}

TEST(BatchPlan, TheIdentitiesHoldForEveryDivisibleCombination) {
  int plans = 0;
  for (const std::int64_t worker : {1, 2, 7, 31, 32, 256})
    for (const std::int64_t workers : {1, 2, 3, 8, 12, 13, 16, 256})
      for (std::int64_t ranks = 1; ranks <= workers; ++ranks)
        for (const std::int64_t preferred : {1, 5, 64, 1000, 100000})
          for (const bool whole : {false, true}) {
            if (workers % ranks != 0) continue;
            const BatchPlan plan = batch_plan(config(workers * worker, worker), ranks, preferred, whole);
            EXPECT_EQ(plan.global, workers * worker);
            EXPECT_EQ(plan.global, plan.workers * plan.worker);
            EXPECT_EQ(plan.global, plan.ranks * plan.rows_per_rank);
            EXPECT_EQ(plan.global, plan.ranks * plan.accumulation * plan.micro_batch);
            EXPECT_EQ(plan.ranks, ranks);
            EXPECT_EQ(plan.worker, worker);
            EXPECT_EQ(plan.rows_per_rank % plan.worker, 0) << "a rank holds whole workers";
            if (whole) {
              EXPECT_EQ(plan.micro_batch % worker, 0);
            }
            ++plans;
          }
  EXPECT_GT(plans, 1000);
}

TEST(BatchPlan, TheMicroBatchIsTheDivisorNearestInRatio) {
  const auto micro = [](std::int64_t rows, std::int64_t preferred) {
    return batch_plan(config(rows, 1), 1, preferred, false).micro_batch;
  };
  EXPECT_EQ(micro(4096, 256), 256);
  EXPECT_EQ(micro(4096, 300), 256);
  EXPECT_EQ(micro(4096, 400), 512);  // 400/256 = 1.56 is further away than 512/400 = 1.28
  EXPECT_EQ(micro(36, 6), 6);
  EXPECT_EQ(micro(16, 100000), 16);
  EXPECT_EQ(micro(36, 5), 6);  // 5/4 is further away than 6/5
}

TEST(BatchPlan, PrimeRowsAreOnePassOrSinglesWhicheverIsNearer) {
  EXPECT_EQ(batch_plan(config(4099, 4099), 1, 256, false).micro_batch, 4099);
  EXPECT_EQ(batch_plan(config(4099, 4099), 1, 256, false).accumulation, 1);
  EXPECT_EQ(batch_plan(config(4099, 4099), 1, 8, false).micro_batch, 1);
  EXPECT_EQ(batch_plan(config(4099, 4099), 1, 8, false).accumulation, 4099);
  EXPECT_EQ(batch_plan(config(2147483647, 1), 1, 2000000000, false).micro_batch, 2147483647);
  EXPECT_EQ(batch_plan(config(13 * 32, 32), 13, 256, true).micro_batch, 32);
  EXPECT_EQ(batch_plan(config(13 * 32, 32), 1, 64, true).micro_batch, 32);
  EXPECT_EQ(batch_plan(config(13 * 32, 32), 1, 256, true).micro_batch, 13 * 32);
}

TEST(BatchPlan, AGivenMicroBatchIsKept) {
  const BatchPlan plan = batch_plan(config(4096, 256, 64), 2, 999, false);
  EXPECT_EQ(plan.micro_batch, 64);
  EXPECT_EQ(plan.accumulation, 32);
  EXPECT_EQ(plan.rows_per_rank, 2048);
}

TEST(BatchPlan, GoyalsBatchIsTheSameOn256On8AndOnOneRank) {
  for (const std::int64_t ranks : {256, 8, 1}) {
    const BatchPlan plan = batch_plan(config(8192, 32), ranks, 64, true);
    EXPECT_EQ(plan.workers, 256);
    EXPECT_EQ(plan.micro_batch, ranks == 256 ? 32 : 64);
    EXPECT_EQ(plan.accumulation, ranks == 256 ? 1 : 8192 / ranks / 64);
  }
}

TEST(BatchPlan, RefusalsSayWhatWouldWork) {
  EXPECT_EQ(
      plan_refusal(config(4096, 100), 1),
      "batch.worker 100 does not divide batch.global 4096 | Values of batch.worker that do: 1, 8, 16, 32, 64, 128, "
      "256, 512, 1024.");
  EXPECT_EQ(plan_refusal(config(256, 32), 3),
            "3 ranks do not divide the 8 virtual workers (batch.global 256 / batch.worker 32) | Numbers of ranks that "
            "do: 1, 2, 4, 8.");
  EXPECT_EQ(plan_refusal(config(256, 32), 16),
            "16 ranks do not divide the 8 virtual workers (batch.global 256 / batch.worker 32) | Numbers of ranks that "
            "do: 1, 2, 4, 8.");
  EXPECT_EQ(plan_refusal(config(256, 32, 48), 2),
            "batch.micro 48 does not divide the 128 rows of each of 2 ranks | Values of batch.micro that do: 1, 2, 4, "
            "8, 16, 32, 64, 128; 0 leaves the choice to the backend.");
  EXPECT_EQ(plan_refusal(config(256, 32, 256), 2).substr(0, 62),
            "batch.micro 256 does not divide the 128 rows of each of 2 rank");
  EXPECT_EQ(plan_refusal(config(256, 32, 16), 2, 64, true),
            "batch.micro 16 splits a virtual worker of 32 samples, which a model with batch norm does not allow | "
            "Values of batch.micro that work: 32 x one of 1, 2, 4.");
  EXPECT_EQ(plan_refusal(config(256, 32, 16), 2, 64, false), "no error");
  for (const BatchConfig& bad : {config(0, 1), config(8, 0), config(8, -1), config(-8, 1), config(8, 1, -1)})
    EXPECT_NE(plan_refusal(bad, 1).find("expected positive numbers"), std::string::npos);
  EXPECT_NE(plan_refusal(config(8, 1), 0).find("expected positive numbers"), std::string::npos);
  EXPECT_NE(plan_refusal(config(8, 1), 1, 0).find("expected positive numbers"), std::string::npos);
}

TEST(BatchPlan, RanksShareWorkersByPowersOfTwo) {
  const auto plan = [](std::int64_t global, std::int64_t worker, std::int64_t ranks, std::int64_t micro = 0) {
    return batch_plan(config(global, worker, micro), ranks, 64, true);
  };
  // MLPerf's batch has 160 workers of 424 samples.
  for (const auto& [ranks, span, accumulation] :
       {std::tuple{160, 1, 1}, {320, 2, 1}, {640, 4, 1}, {1280, 8, 1}, {64, 2, 5}, {128, 4, 5}, {256, 8, 5}}) {
    const BatchPlan p = plan(67840, 424, ranks);
    EXPECT_EQ(p.span, span) << ranks;
    EXPECT_EQ(p.micro_batch, 424 / span) << ranks;
    EXPECT_EQ(p.accumulation, accumulation) << ranks;
    EXPECT_EQ(p.global, p.ranks * p.accumulation * p.micro_batch);
    EXPECT_EQ(p.workers, 160);
  }
  EXPECT_EQ(to_string(plan(67840, 424, 320)),
            "67840 = 160 workers x 424 = 320 ranks x 1 micro-step x 212, 2 ranks share a worker");
  EXPECT_EQ(plan(16, 8, 4, 4).micro_batch, 4);
  EXPECT_EQ(resized(plan(16, 8, 4), 64).accumulation, 4);
  EXPECT_EQ(ranks_per_worker(config(67840, 424), 2560), 0) << "424 = 8 x 53";
}

TEST(BatchPlan, WorkersThatRanksCannotShareAreRefused) {
  EXPECT_EQ(plan_refusal(config(67840, 424), 2560, 64, true),
            "2560 ranks neither divide the 160 virtual workers (batch.global 67840 / batch.worker 424) nor can a power "
            "of two of ranks share each | Numbers of ranks that can: 1, 64, 80, 128, 160, 256, 320, 640, 1280.");
  EXPECT_EQ(plan_refusal(config(24, 8), 9, 64, true).substr(0, 36), "9 ranks neither divide the 3 virtual");
  EXPECT_EQ(plan_refusal(config(24, 8), 6, 64, false).substr(0, 36), "6 ranks do not divide the 3 virtual ");
  EXPECT_EQ(plan_refusal(config(24, 8, 8), 6, 64, true),
            "batch.micro is 8, but 2 ranks share each virtual worker of 8 samples, expected 4: a pass is a rank's part "
            "of one worker | Set batch.micro=4, or 0.");
}

TEST(BatchPlan, AnyNumberOfRanksEvaluatesInThePassesOfTheRun) {
  for (const std::int64_t micro : {0, 4, 8, 32})
    for (const std::int64_t recorded : {0, 4, 8, 32})
      for (std::int64_t ranks = 1; ranks <= 40; ++ranks)
        for (const bool whole_workers : {false, true}) {
          BatchConfig batch = config(64, 8);
          batch.micro = micro;
          const BatchConfig evaluated = evaluation_batch(batch, ranks, recorded);
          const BatchPlan plan = batch_plan(evaluated, ranks, 8, whole_workers);
          EXPECT_GE(plan.global, 64);
          EXPECT_LT(plan.global, 64 + ranks * plan.micro_batch) << "no more padding than a pass of each rank";
          if (micro > 0) {
            EXPECT_EQ(plan.micro_batch, micro);
          }
          const bool divides = 8 % ranks == 0 && micro == 0;
          EXPECT_EQ(evaluated.global == 64 && evaluated.worker == 8 && evaluated.micro == 0, divides);
        }
  BatchConfig batch = config(64, 8);
  EXPECT_EQ(evaluation_batch(batch, 3, 16).micro, 16);
  EXPECT_EQ(evaluation_batch(batch, 3, 64).micro, 22) << "a rank's share, or two ranks would be idle";
  EXPECT_EQ(dividing_ranks(batch, 7), 4);
  EXPECT_EQ(dividing_ranks(batch, 9), 8);
  batch.micro = 32;
  EXPECT_EQ(dividing_ranks(batch, 7), 2);
}

TEST(BatchPlan, TheLineShowsTheNumbersAndCountsOneInTheSingular) {
  EXPECT_EQ(to_string(batch_plan(config(4096, 256), 2, 256, false)),
            "4096 = 16 workers x 256 = 2 ranks x 8 micro-steps x 256");
  EXPECT_EQ(to_string(batch_plan(config(32, 32), 1, 32, false)), "32 = 1 worker x 32 = 1 rank x 1 micro-step x 32");
}

TEST(BatchPlan, NearestDivisorsAreInOrderAndAtMostEightBesidesOne) {
  EXPECT_EQ(nearest_divisors(12, 5), "1, 2, 3, 4, 6, 12");
  EXPECT_EQ(nearest_divisors(256, 300), "1, 2, 4, 8, 16, 32, 64, 128, 256");
  EXPECT_EQ(nearest_divisors(1 << 20, 1 << 10), "1, 64, 128, 256, 512, 1024, 2048, 4096, 8192");
  EXPECT_EQ(nearest_divisors(1, 100), "1");
}

TEST(BatchPlan, AStatedSmallBatchIsWholePassesOnEveryRank) {
  const BatchPlan large = batch_plan(config(4096, 32), 2, 100, false, 256);
  EXPECT_EQ(large.small_batch, 256);
  EXPECT_EQ(large.micro_batch, 128) << "the divisor of the small batch nearest to what the backend prefers";
  EXPECT_EQ(large.passes_of_small_batch(), 2);
  EXPECT_EQ(large.small_batches(), 8);
  const BatchPlan small = batch_plan(config(4096, 32), 2, 1000, false, 256);
  EXPECT_EQ(small.micro_batch, 256);
  EXPECT_EQ(small.accumulation, 8);
  EXPECT_EQ(batch_plan(config(4096, 32), 2, 40, true, 256).micro_batch, 32) << "whole workers";
  const BatchPlan unstated = batch_plan(config(4096, 32), 2, 128, false);
  EXPECT_EQ(unstated.small_batch, unstated.micro_batch);
  EXPECT_EQ(unstated.passes_of_small_batch(), 1);
}

TEST(BatchPlan, ASmallBatchThatCutsARankIsRefusedWithNumbersOfRanksThatWork) {
  try {
    batch_plan(config(48, 8), 2, 64, false, 16);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "noise.small_batch 16 does not divide the 24 rows of each of 2 ranks");
    EXPECT_NE(std::string(error.hint()).find("Numbers of ranks that work: 1, 3"), std::string::npos) << error.hint();
  }
}

}  // namespace
}  // namespace ringtrain
