// Helpers that the tests of pipelines share. They compare runs of pipelines, in host memory or on (host) devices, with
// the run of one rank.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "one_rank.h"
#include "tests/unit/image_shards.h"

namespace ringtrain {

class PipelineTest : public TrainerTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(TrainerTest::SetUp());
    write_image_shards((folder_ / "images").string(), raw_images(144, 8, 8), 2);
    write_image_shards((folder_ / "large").string(), raw_images(24, 64, 64), 2);
  }

  Experiment text(const std::string& data, Settings more) const {
    more.insert(more.begin(), "model.layers=3");
    return experiment(data, more);
  }
  Experiment images(const std::string& model, const Settings& more) const {
    const bool large = model.find("alexnet") != std::string::npos;
    return image_experiment(
        large ? "large" : "images", large ? 64 : 8,
        cat("model: ", model, "\nbatch: {global: ", large ? 12 : 36, ", worker: 3, micro: 3}\n",
            "optimizer: {kind: sgd, momentum: 0.9, weight_decay: 0.001}\n", "learning_rate: {base: 0.01}\n"),
        more);
  }
};

inline Experiment as_pipeline(Experiment e, int stages, const std::string& schedule) {
  e.parallel.kind = "pipeline";
  e.parallel.stages = stages;
  e.parallel.schedule = schedule;
  return e;
}

// Returns which of 2, 3 and 4 stages divide the number of ranks.
inline std::vector<int> possible_stages() {
  std::vector<int> all;
  for (const int stages : {2, 3, 4})
    if (session().size() % stages == 0) all.push_back(stages);
  return all;
}

// Returns, on rank 0, the largest difference of an element divided by the largest element of its array.
inline double distance(const Checkpoint& a, const Checkpoint& b) {
  double worst = 0;
  EXPECT_EQ(a.arrays.size(), b.arrays.size());
  for (std::size_t i = 0; i < std::min(a.arrays.size(), b.arrays.size()); ++i) {
    EXPECT_EQ(a.arrays[i].name, b.arrays[i].name);
    EXPECT_EQ(a.arrays[i].shape, b.arrays[i].shape);
    double largest = 1e-6, difference = 0;
    for (std::size_t j = 0; j < a.arrays[i].values.size(); ++j) {
      largest = std::max(largest, std::abs(static_cast<double>(a.arrays[i].values[j])));
      difference = std::max(difference, std::abs(static_cast<double>(a.arrays[i].values[j]) -
                                                 static_cast<double>(b.arrays[i].values[j])));
    }
    worst = std::max(worst, difference / largest);
  }
  return worst;
}

inline void expect_same_run(const Experiment& e, int steps, double tolerance, double first_tolerance = 1e-5,
                            const std::vector<std::string>& schedules = {"gpipe", "1f1b"}, bool on_device = false) {
  if (possible_stages().empty()) GTEST_SKIP() << "one rank has no stages";
  OneRank one(e, on_device);
  const std::size_t elements = one.weights().size();
  const Checkpoint begin = one.snapshot();
  std::vector<OneRank::Step> expected = one.steps(1);
  const Checkpoint after = one.snapshot();
  for (const OneRank::Step& step : one.steps(steps - 1)) expected.push_back(step);
  const Checkpoint end = one.snapshot();
  for (const int stages : possible_stages())
    for (const std::string& schedule : schedules) {
      SCOPED_TRACE(cat(stages, " stages, ", schedule));
      TrainingRank pipe(as_pipeline(e, stages, schedule), on_device);
      EXPECT_EQ(pipe.plan.stages(), stages);
      EXPECT_LT(pipe.trainer->weights().size(), static_cast<std::int64_t>(elements));
      // Taking a pipeline's checkpoint is collective, and rank 0 receives it.
      const auto expect_near = [&](const Checkpoint& of_one, double limit) {
        const Checkpoint found = pipe.snapshot();
        if (session().rank() == 0) {
          EXPECT_LE(distance(of_one, found), limit);
        }
      };
      expect_near(begin, 0);
      for (std::size_t step = 0; step < expected.size(); ++step) {
        const double limit = step == 0 ? first_tolerance : tolerance;
        const OneRank::Step& of_one = expected[step];
        const StepReport report = pipe.trainer->step({});
        ASSERT_NEAR(report.loss, of_one.loss, limit * of_one.loss) << step;
        ASSERT_NEAR(report.gradient_norm, of_one.gradient_norm, limit * of_one.gradient_norm) << step;
        EXPECT_EQ(report.position, of_one.position);
        EXPECT_EQ(report.requests.signal, 0);
        if (step == 0) expect_near(after, first_tolerance);
      }
      expect_near(end, e.model.kind == "resnet" ? 10 * tolerance : tolerance);  // batch norm amplifies rounding
      for (const auto& nccl : pipe.nccls) EXPECT_TRUE(nccl->misuses.empty()) << nccl->misuses.front();
    }
}

}  // namespace ringtrain
