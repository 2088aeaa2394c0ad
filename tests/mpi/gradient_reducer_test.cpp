#include "cluster/gradient_reducer.h"

#include <algorithm>
#include <random>

#include "base/clock.h"
#include "base/error.h"
#include "mpi_tests.h"

namespace ringtrain {
namespace {

TEST(GradientReducer, IsAPlainSumForAnyWatermarksAndBuckets) {
  const auto communicator = make_mpi_communicator(session().job(), 512);
  std::mt19937 own_random(static_cast<unsigned>(session().rank()) + 1);  // ranks see watermarks at different times
  for (const std::int64_t bucket : {1, 3, 64, 1000, 5000}) {
    const std::size_t count = bucket == 1 ? 200 : 4999;
    std::vector<float> gradients(count);
    GradientReducer reducer(*communicator, gradients, bucket);
    for (int step = 0; step < 4; ++step) {
      std::ranges::copy(exact_values(session().rank(), count, step), gradients.begin());
      reducer.begin();
      for (std::int64_t watermark = 0; watermark < std::ssize(gradients);) {
        watermark = std::min<std::int64_t>(std::ssize(gradients), watermark + own_random() % 700);
        reducer.ready(watermark);
        for (unsigned polls = own_random() % 4; polls > 0; --polls) reducer.poll();
        if (own_random() % 3 == 0) break;  // finish() launches the rest
      }
      std::vector<double> counters = {session().rank() + 1.0, static_cast<double>(step)};
      reducer.finish(counters);
      EXPECT_EQ(gradients, exact_sums(session().size(), count, step)) << "bucket " << bucket << ", step " << step;
      const double ranks = session().size();
      EXPECT_EQ(counters[0], ranks * (ranks + 1) / 2);
      EXPECT_EQ(counters[1], ranks * step);
    }
  }
}

TEST(GradientReducer, ShowsEveryBucketWhileItHoldsThisRanksOwnValues) {
  const auto communicator = make_mpi_communicator(session().job(), 512);
  const std::vector<float> own = exact_values(session().rank(), 1000);
  std::vector<float> gradients = own;
  GradientReducer reducer(*communicator, gradients, 300);
  std::vector<std::int64_t> begins;
  const BeforeBucket look = [&](std::int64_t begin, std::uintptr_t stream) {
    begins.push_back(begin);
    EXPECT_EQ(stream, 0u) << "host memory";
    for (auto i = static_cast<std::size_t>(begin);
         i < std::min<std::size_t>(1000, static_cast<std::size_t>(begin) + 300); ++i)
      ASSERT_EQ(gradients[i], own[i]) << i;
  };
  reducer.begin(look);
  reducer.ready(700);
  reducer.finish({});
  EXPECT_EQ(begins, (std::vector<std::int64_t>{0, 300, 600, 900}));
  gradients = own;
  reducer.begin();  // nothing reports progress in this step
  reducer.finish({});
  EXPECT_EQ(begins.size(), 4u);
  EXPECT_EQ(gradients, exact_sums(session().size(), 1000));
}

TEST(GradientReducer, LaunchesNothingAboveTheWatermark) {
  const auto communicator = make_mpi_communicator(session().job(), 512);
  std::vector<float> gradients(100, 1.0f);
  GradientReducer reducer(*communicator, gradients, 30);
  int launched = 0;
  reducer.begin([&](std::int64_t, std::uintptr_t) { ++launched; });
  reducer.ready(59);  // one bucket is complete; the second lacks an element
  for (int i = 0; i < 1000; ++i) reducer.poll();
  EXPECT_EQ(launched, 1);
  for (std::size_t i = 30; i < 100; ++i) gradients[i] = 2.0f;  // the backward pass goes on
  std::vector<double> none;
  reducer.finish(none);
  EXPECT_EQ(launched, 4);
  for (std::size_t i = 0; i < 100; ++i)
    EXPECT_EQ(gradients[i], static_cast<float>(session().size()) * (i < 30 ? 1.0f : 2.0f)) << i;
}

TEST(GradientReducer, WorksBetweenPollsAndNotOnlyInFinish) {
  const auto communicator = make_mpi_communicator(session().job(), 4096);
  std::vector<float> gradients = exact_values(session().rank(), 20000);
  GradientReducer reducer(*communicator, gradients, 5000);
  reducer.begin();
  reducer.ready(10000);
  const std::vector<float> sums = exact_sums(session().size(), 20000);
  const auto summed = [&] { return std::equal(sums.begin(), sums.begin() + 10000, gradients.begin()); };
  for (const double start = now_seconds(); !summed() && now_seconds() - start < 20;) reducer.poll();
  EXPECT_TRUE(summed());
  std::vector<double> counters = {1.0};
  reducer.finish(counters);
  EXPECT_EQ(gradients, sums);
}

TEST(GradientReducer, AcceptsAnEmptyGradient) {
  const auto communicator = make_mpi_communicator(session().job(), 512);
  GradientReducer reducer(*communicator, {}, 10);
  reducer.begin([](std::int64_t begin, std::uintptr_t) { ADD_FAILURE() << "a bucket at " << begin; });
  std::vector<double> counters = {2.0};
  reducer.finish(counters);
  EXPECT_EQ(counters[0], 2.0 * session().size());
}

TEST(GradientReducer, RefusesMisuse) {
  const auto communicator = make_mpi_communicator(session().job(), 512);
  std::vector<float> gradients(10);
  EXPECT_THROW(GradientReducer(*communicator, gradients, 0), Error);
  GradientReducer reducer(*communicator, gradients, 5);
  reducer.begin();
  EXPECT_THROW(reducer.ready(11), Error);
}

}  // namespace
}  // namespace ringtrain
