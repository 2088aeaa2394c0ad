// Tests the recomputation of batch norm's statistics over training samples. On any number of ranks the statistics must
// be those of the samples in fp64. The training must not depend on whether they were recomputed.
#include <atomic>

#include "tests/unit/image_reference.h"
#include "tests/unit/image_shards.h"
#include "train/evaluation.h"
#include "training_rank.h"

namespace ringtrain {
namespace {

constexpr std::int64_t normed_samples = 72, group = 3;

class NormRecomputationTest : public TrainerTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(TrainerTest::SetUp());
    write_image_shards((folder_ / "images").string(), raw_images(normed_samples, 8, 8), 2);
  }
  // Twelve virtual workers of three samples fill a batch on 1, 2, 3 and 4 ranks.
  Experiment experiment(const Settings& more = {}) const {
    return image_experiment(
        "images", 8,
        cat("model: {kind: resnet, depth: 18, width: 16, stem: small}\nbatch: {global: 36, worker: ", group,
            ", micro: 3}\noptimizer: {kind: sgd}\nlearning_rate: {base: 0.01}\n",
            "evaluate: {norm_statistics: recomputed, norm_samples: 30}\n"),
        more);
  }
};

struct Measured {
  TrainingRank rank;
  NormRecomputation norms;
  Measured(const Experiment& e, bool on_device, bool alone = false)
      : rank(e, on_device, nullptr, alone),
        norms(rank.plan, make_dataset(rank.plan.train), *rank.backend, rank.communicator(), rank.watchdog) {}
  std::vector<float> values(const WantsToLeave& wish = {}) {
    EXPECT_TRUE(norms.measure(rank.trainer->weights(), 0, wish));
    return {norms.values().begin(), norms.values().end()};
  }
};

// Computes the statistics of the loader's first samples of epoch 0 in fp64, group by group.
std::vector<double> expected_values(TrainingRank& rank) {
  const RunPlan& plan = rank.plan;
  LoaderPlan one = plan.train_loader;
  one.global_batch = one.rows = one.micro_batch = group;
  Loader loader(make_dataset(plan.train), one);
  loader.seek(0, 0);
  const std::vector<float> weights = rank.weights();
  const std::vector<double> w(weights.begin(), weights.end());
  const std::int64_t groups = plan.norm_samples / group, trained = plan.parameters.trained();
  std::vector<double> means(static_cast<std::size_t>(plan.parameters.size())), squares = means;
  for (std::int64_t g = 0; g < groups; ++g) {
    const MicroBatch& batch = loader.next();
    TestPass pass;
    pass.inputs = batch.inputs.data();
    pass.targets = batch.targets.data();
    pass.gradient_scale = 1;
    pass.statistic_scale = 1;
    const std::vector<double> sums = run_reference(plan.graph, w, pass, group, group, PassMode::training).gradients;
    for (const Node& node : plan.graph.nodes()) {
      const auto* norm = std::get_if<Norm>(&node.operation);
      if (norm == nullptr) continue;
      const auto n = static_cast<double>(group * node.output.height * node.output.width);
      for (std::int64_t c = 0; c < norm->channels; ++c) {
        const auto at = static_cast<std::size_t>(plan.parameters.find(norm->running_mean).offset + c);
        const auto variance = static_cast<std::size_t>(plan.parameters.find(norm->running_var).offset + c);
        means[at] += sums[at] / static_cast<double>(groups);
        squares[variance] += (sums[at] * sums[at] + sums[variance] * (n - 1) / n) / static_cast<double>(groups);
      }
    }
  }
  std::vector<double> result(static_cast<std::size_t>(plan.parameters.size() - trained));
  for (const Node& node : plan.graph.nodes()) {
    const auto* norm = std::get_if<Norm>(&node.operation);
    if (norm == nullptr) continue;
    for (std::int64_t c = 0; c < norm->channels; ++c) {
      const std::int64_t at = plan.parameters.find(norm->running_mean).offset + c;
      const std::int64_t variance = plan.parameters.find(norm->running_var).offset + c;
      const double mean = means[static_cast<std::size_t>(at)];
      result[static_cast<std::size_t>(at - trained)] = mean;
      result[static_cast<std::size_t>(variance - trained)] = squares[static_cast<std::size_t>(variance)] - mean * mean;
    }
  }
  return result;
}

double distance(const std::vector<float>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

TEST_F(NormRecomputationTest, AreThoseOfTheFirstSamplesInFp64OnAnyNumberOfRanks) {
  Measured cpu(experiment(), false);
  cpu.rank.steps(2);
  const std::vector<double> expected = expected_values(cpu.rank);
  const std::vector<float> values = cpu.values();
  EXPECT_LT(distance(values, expected), 1e-5);
  Measured gpu(experiment(), true);
  gpu.rank.backend->copy_from_host(cpu.rank.weights(), gpu.rank.trainer->weights(), 0);
  EXPECT_LT(distance(gpu.values(), expected), 1e-4);
  // This run has one rank, whose passes hold two groups.
  Measured other(experiment({"batch.micro=12"}), false, true);
  EXPECT_EQ(other.rank.plan.norm_loader.rows, 2 * group);
  other.rank.backend->copy_from_host(cpu.rank.weights(), other.rank.trainer->weights(), 0);
  EXPECT_LT(distance(other.values(), {values.begin(), values.end()}), 1e-6);
}

// There is only one pass. If there are several ranks, all but one of them have nothing to do.
TEST_F(NormRecomputationTest, OneGroupIsEnough) {
  Measured m(experiment({"evaluate.norm_samples=3"}), false);
  EXPECT_LT(distance(m.values(), expected_values(m.rank)), 1e-5);
}

TEST_F(NormRecomputationTest, LeaveTheTrainingAsItIsBitForBit) {
  for (const bool on_device : {false, true}) {
    Measured measured(experiment(), on_device);
    TrainingRank plain(experiment({"evaluate.norm_statistics=running", "evaluate.norm_samples=0"}), on_device);
    for (int step = 0; step < (on_device ? 2 : 4); ++step) {
      const StepReport a = measured.rank.steps(1)[0], b = plain.steps(1)[0];
      EXPECT_EQ(a.loss, b.loss) << step;
      EXPECT_EQ(a.gradient_norm, b.gradient_norm) << step;
      const std::vector<float> before = measured.rank.weights(), values = measured.values();
      EXPECT_EQ(measured.rank.weights(), before);
      // An evaluation exchanges the statistics in the same way.
      measured.norms.exchange(measured.rank.trainer->weights());
      const std::vector<float> evaluated = measured.rank.weights();
      EXPECT_TRUE(
          std::equal(values.begin(), values.end(), evaluated.begin() + measured.rank.plan.parameters.trained()));
      EXPECT_NE(evaluated, before);
      measured.norms.exchange(measured.rank.trainer->weights());
      EXPECT_EQ(measured.rank.weights(), before);
    }
    EXPECT_EQ(measured.rank.weights(), plain.weights());
  }
}

TEST_F(NormRecomputationTest, EndHalfWayWhenARankWantsToLeave) {
  Measured m(experiment(), false);
  const std::vector<float> before = m.values();
  m.rank.steps(1);
  int asked = 0;
  const bool leaves = session().rank() == session().size() - 1;
  const WantsToLeave wish = [&] { return ++asked > 1 && leaves; };
  const bool done = m.norms.measure(m.rank.trainer->weights(), 1, wish);
  const std::int64_t passes =
      (m.rank.plan.norm_samples / m.rank.plan.norm_loader.rows + session().size() - 1) / session().size();
  EXPECT_EQ(done, passes < 3);  // the ranks agree on the end one pass later
  EXPECT_EQ(std::equal(before.begin(), before.end(), m.norms.values().begin()), !done);
}

TEST_F(NormRecomputationTest, StandInTheCheckpointsWeightsAndTheRunsOwnBesideThem) {
  const Experiment e = experiment();
  Measured first(e, false);
  first.rank.steps(3);
  first.values();
  RunProgress progress;
  progress.position = first.rank.trainer->position();
  progress.norms_step = 3;
  const Checkpoint checkpoint =
      take_snapshot(*first.rank.trainer, first.rank.plan, {progress}, first.rank.communicator(), first.norms.values());
  if (session().rank() == 0) {
    const ParameterTable& table = first.rank.plan.parameters;
    std::vector<float> evaluated(static_cast<std::size_t>(table.size())), own = first.rank.weights();
    load_weights(checkpoint, table, evaluated);
    EXPECT_TRUE(
        std::equal(first.norms.values().begin(), first.norms.values().end(), evaluated.begin() + table.trained()));
    EXPECT_TRUE(std::equal(own.begin(), own.begin() + table.trained(), evaluated.begin()));
    EXPECT_NO_THROW(expect_evaluated_norms(checkpoint, "c.h5"));
    Checkpoint hurried = checkpoint;
    hurried.numbers["norms_step"] = -1;
    EXPECT_THROW(expect_evaluated_norms(hurried, "c.h5"), Error);
    hurried.numbers.erase("norms_step");
    EXPECT_THROW(expect_evaluated_norms(hurried, "c.h5"), Error);
  }
  TrainingRank resumed(e, false, &checkpoint);
  EXPECT_EQ(resumed.weights(), first.rank.weights());
  first.rank.steps(2);
  resumed.steps(2);
  EXPECT_EQ(resumed.weights(), first.rank.weights());
}

// Akiba et al. take the statistics of the newest step, reduced over all workers. A skipped step leaves the statistics
// of the step before it.
TEST_F(NormRecomputationTest, LastOnesAreTheReducedStatisticsOfTheNewestAppliedStep) {
  for (const bool on_device : {false, true}) {
    const Settings last = {"evaluate.norm_statistics=last", "evaluate.norm_samples=0"};
    const Settings running = {"evaluate.norm_statistics=running", "evaluate.norm_samples=0"};
    TrainingRank own(experiment(last), on_device), averaged(experiment(running), on_device);
    const auto statistics = [](TrainingRank& rank) {
      const std::vector<float> all = rank.weights();
      return std::vector<float>(all.begin() + rank.plan.parameters.trained(), all.end());
    };
    std::vector<float> expected = statistics(averaged);
    for (int step = 0; step < 2; ++step) {
      own.steps(1);
      averaged.steps(1);
      const std::vector<float> now = statistics(own), mean = statistics(averaged);
      for (std::size_t i = 0; i < now.size(); ++i) {
        expected[i] = 0.9f * expected[i] + 0.1f * now[i];
        EXPECT_NEAR(mean[i], expected[i], 1e-5 * (1 + std::abs(expected[i]))) << step << " " << i;
      }
    }
    // The trained weights must not depend on the choice of statistics.
    const std::vector<float> a = own.weights(), b = averaged.weights();
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + own.plan.parameters.trained(), b.begin()));
  }
}

TEST_F(NormRecomputationTest, LastOnesStayWhereAStepIsSkipped) {
  TrainingRank run(experiment({"evaluate.norm_statistics=last", "evaluate.norm_samples=0", "precision=fp16",
                               "loss_scale.initial=1048576"}),
                   true);
  bool skipped = false;
  for (int step = 0; step < 30 && !(skipped && run.trainer->optimizer().applied().updates > 0); ++step) {
    const std::vector<float> before = run.weights();
    const StepReport report = run.steps(1).front();
    EXPECT_EQ(run.weights() == before, !report.applied);
    skipped = skipped || !report.applied;
  }
  EXPECT_TRUE(skipped);
}

TEST_F(NormRecomputationTest, MoreSamplesThanThereAreIsAnErrorThatNamesBoth) {
  try {
    TrainingRank run(experiment({"evaluate.norm_samples=75"}), false);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("evaluate.norm_samples is 75, but"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.hint()).find("72"), std::string::npos) << error.hint();
  }
}

}  // namespace
}  // namespace ringtrain
