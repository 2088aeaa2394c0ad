// Tests virtual workers of batch norm that several ranks share. The first gradient, the curve, evaluations and
// checkpoints must be those of one rank.
#include <bit>
#include <functional>

#include "checkpoint/resume.h"
#include "cluster/communicator.h"
#include "one_rank.h"
#include "tests/unit/image_shards.h"
#include "train/evaluation.h"

namespace ringtrain {
namespace {

class NormSpanTraining : public TrainerTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(TrainerTest::SetUp());
    write_image_shards((folder_ / "images").string(), raw_images(150, 20, 20), 2);
  }

  // The batch is `workers` virtual workers of four samples. On p ranks, where p is a power of two that does not divide
  // `workers`, ranks share workers.
  Experiment experiment(std::int64_t workers, const std::string& model, const Settings& more = {}) const {
    return image_experiment("images", 16,
                            cat("model: ", model, "\nbatch: {global: ", 4 * workers,
                                ", worker: 4}\noptimizer: {kind: sgd, momentum: 0.9, weight_decay: 0.0001}\n",
                                "learning_rate: {base: 0.02}\n"),
                            more);
  }
};

const char* const kResnet = "{kind: resnet, depth: 18, width: 16, stem: small}";

#define SKIP_UNLESS_RANKS_CAN_SHARE_WORKERS() \
  if (!std::has_single_bit(static_cast<unsigned>(session().size()))) GTEST_SKIP() << "the ranks are no power of two"

// Makes one update. Without momentum and weight decay, the weights before the update minus the weights after it are the
// gradient times the learning rate.
template <class Run>
std::vector<double> first_gradient(Run& run) {
  const std::vector<float> before = run.weights();
  run.steps(1);
  const std::vector<float> after = run.weights();
  std::vector<double> difference(before.size());
  for (std::size_t i = 0; i < before.size(); ++i)
    difference[i] = static_cast<double>(before[i]) - static_cast<double>(after[i]);
  return difference;
}

double tensor_difference(const std::vector<double>& a, const std::vector<double>& b, const Parameter& p) {
  double difference = 0, norm = 0;
  for (auto i = static_cast<std::size_t>(p.offset); i < static_cast<std::size_t>(p.offset + p.count); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

TEST_F(NormSpanTraining, ThePartsOfAllRanksArriveInTheirOrder) {
  const int size = session().size();
  for (int span = 1; span <= size; span *= 2) {
    if (size % span != 0) continue;
    const auto ranks = make_mpi_norm_team(session().job(), span);
    ASSERT_EQ(ranks->size(), span);
    EXPECT_EQ(ranks->rank(), session().rank() % span);
    const int first = session().rank() - ranks->rank();
    for (const std::size_t length : {std::size_t{1}, std::size_t{7}, std::size_t{100003}}) {
      std::vector<double> parts(length * static_cast<std::size_t>(span), -1);
      const std::vector<float> own = exact_values(session().rank(), length, span);
      std::copy(own.begin(), own.end(), parts.begin() + static_cast<std::ptrdiff_t>(length) * ranks->rank());
      ranks->gather(parts, {});
      for (int r = 0; r < span; ++r) {
        const std::vector<float> part = exact_values(first + r, length, span);
        EXPECT_TRUE(std::equal(part.begin(), part.end(), parts.begin() + static_cast<std::ptrdiff_t>(length) * r))
            << r << " of " << span << " with " << length;
      }
    }
  }
  EXPECT_THROW(make_mpi_norm_team(session().job(), 3 * size), Error);
}

// Returns the experiment for a run of one rank. One rank cannot be several servers, so the key `parallel` is dropped.
Experiment as_ring(Experiment e) {
  e.parallel = {};
  return e;
}

// Returns the largest relative difference of a tensor of the first gradient. The learning rate is large, so that the
// rounding of the weights is small compared with the update.
double gradient_difference(const Experiment& e, bool on_device) {
  TrainingRank run(e, on_device);
  OneRank one(as_ring(e));
  EXPECT_EQ(run.plan.batch.span, session().size());
  const std::vector<double> shared = first_gradient(run), alone = first_gradient(one);
  double largest = 0;
  for (const Parameter& p : run.plan.parameters.all())
    if (p.offset < run.plan.parameters.trained()) largest = std::max(largest, tensor_difference(shared, alone, p));
  return largest;
}

// Rounding decides whether a ReLU with an input close to zero is open, and one such unit is 1 % of a gradient. One of a
// few seeds must therefore give the gradient, and the other seeds must come close to it. A missing part would show with
// every seed.
void expect_gradient_of_one_rank(const std::function<Experiment(const std::string& seed)>& seeded, bool on_device) {
  double least = 1;
  for (int seed = 1; seed <= 4 && least > 1e-5; ++seed) {
    const double difference = gradient_difference(seeded(cat("seed=", seed)), on_device);
    EXPECT_LE(difference, 0.05) << "seed " << seed;
    least = std::min(least, difference);
  }
  EXPECT_LE(least, 1e-5);
}

// Compares losses and norms of the steps. From step `exact` on, rounding errors grow.
void expect_curve(const std::vector<StepReport>& shared, const std::vector<OneRank::Step>& alone, std::size_t exact) {
  for (std::size_t i = 0; i < shared.size(); ++i) {
    const double tolerance = i < exact ? 1e-5 : 2e-2;
    EXPECT_NEAR(shared[i].loss, alone[i].loss, tolerance * (1 + alone[i].loss)) << i;
    EXPECT_NEAR(shared[i].gradient_norm, alone[i].gradient_norm, 10 * tolerance * alone[i].gradient_norm) << i;
  }
}

// The running statistics must count each worker once.
void expect_running_statistics_of_one_rank(const Experiment& e, bool on_device) {
  TrainingRank once(e, on_device);
  OneRank alone(as_ring(e));
  once.steps(1);
  alone.steps(1);
  const std::vector<float> first = once.weights(), first_alone = alone.weights();
  for (auto i = static_cast<std::size_t>(once.plan.parameters.trained()); i < first.size(); ++i)
    EXPECT_NEAR(first[i], first_alone[i], 1e-5f * (1 + std::abs(first_alone[i]))) << i;
}

const Settings kOneUpdate = {"optimizer.momentum=0", "optimizer.weight_decay=0", "learning_rate.base=4096"};

TEST_F(NormSpanTraining, TheFirstGradientIsThatOfOneRank) {
  SKIP_UNLESS_RANKS_CAN_SHARE_WORKERS();
  Settings large = kOneUpdate;
  large.push_back("data.image_size=64");
  const std::string alexnet = "{kind: alexnet, norm: true, dropout: 0.3}";  // 20 million weights: only on 2 ranks
  struct Case {
    std::int64_t workers;
    std::string model;
    Settings settings;
  };
  for (const auto& [workers, model, settings] :
       {Case{1, kResnet, kOneUpdate}, Case{3, kResnet, kOneUpdate}, Case{3, alexnet, large}}) {
    if (model == alexnet && session().size() != 2) continue;
    SCOPED_TRACE(cat(workers, " workers, ", model));
    const auto seeded = [&, &workers = workers, &model = model, &settings = settings](const std::string& seed) {
      Settings more = settings;
      more.push_back(seed);
      return experiment(workers, model, more);
    };
    expect_gradient_of_one_rank(seeded, false);
  }
}

TEST_F(NormSpanTraining, TheFirstGradientOfDevicesIsThatOfOneRank) {
  SKIP_UNLESS_RANKS_CAN_SHARE_WORKERS();
  for (const std::int64_t workers : {1, 3}) {
    SCOPED_TRACE(workers);
    const auto seeded = [&](const std::string& seed) {
      Settings more = kOneUpdate;
      more.insert(more.end(), {"precision=fp32", seed});
      return experiment(workers, kResnet, more);
    };
    expect_gradient_of_one_rank(seeded, true);
  }
}

TEST_F(NormSpanTraining, TheCurveOfDevicesIsThatOfOneRank) {
  SKIP_UNLESS_RANKS_CAN_SHARE_WORKERS();
  const Experiment e = experiment(3, kResnet, {"precision=fp32"});
  TrainingRank shared(e, true);
  OneRank alone(e);
  expect_curve(shared.steps(8), alone.steps(8), 3);
  expect_running_statistics_of_one_rank(e, true);
}

TEST_F(NormSpanTraining, RecomputedBlocksChangeNoBitOnDevices) {
  SKIP_UNLESS_RANKS_CAN_SHARE_WORKERS();
  TrainingRank plain(experiment(3, kResnet, {"precision=fp32"}), true);
  TrainingRank again(experiment(3, kResnet, {"precision=fp32", "memory.recompute=[conv1,layer1,layer3.0]"}), true);
  plain.steps(2);
  again.steps(2);
  EXPECT_EQ(plain.weights(), again.weights());
}

TEST_F(NormSpanTraining, TheCurveIsThatOfOneRank) {
  SKIP_UNLESS_RANKS_CAN_SHARE_WORKERS();
  for (const std::int64_t workers : {1, 3, 5}) {
    SCOPED_TRACE(workers);
    const Experiment e = experiment(workers, kResnet);
    TrainingRank shared(e, false);
    OneRank alone(e);
    const auto span = static_cast<std::int64_t>(session().size());
    EXPECT_EQ(shared.plan.batch.span, span) << "an odd number of workers";
    EXPECT_EQ(shared.plan.batch.micro_batch * shared.plan.batch.accumulation, 4 * workers / span);
    expect_curve(shared.steps(8), alone.steps(8), 5);
    expect_running_statistics_of_one_rank(e, false);
  }
}

TEST_F(NormSpanTraining, ServersAndShardedStateGiveTheRunOfOneRank) {
  SKIP_UNLESS_RANKS_CAN_SHARE_WORKERS();
  if (session().size() == 1) GTEST_SKIP() << "one rank shares nothing";
  for (const Settings& way :
       {Settings{"parallel.shard_state=true"}, Settings{"parallel.kind=server", "parallel.servers=2"}}) {
    SCOPED_TRACE(way.back());
    const auto seeded = [&](const std::string& seed) {
      return experiment(3, kResnet, kOneUpdate + way + Settings{seed});
    };
    expect_gradient_of_one_rank(seeded, false);
    const Experiment e = experiment(3, kResnet, way);
    TrainingRank shared(e, false);
    OneRank alone(as_ring(e));
    EXPECT_EQ(shared.plan.batch.span, session().size());
    expect_curve(shared.steps(10), alone.steps(10), 5);
    expect_running_statistics_of_one_rank(e, false);
  }
}

TEST_F(NormSpanTraining, RecomputedStatisticsAreThoseOfOneRank) {
  SKIP_UNLESS_RANKS_CAN_SHARE_WORKERS();
  const Experiment e = experiment(3, kResnet, {"evaluate.norm_statistics=recomputed", "evaluate.norm_samples=24"});
  TrainingRank shared(e, false);
  OneRank alone(e);
  shared.steps(2);
  alone.steps(2);
  const auto measured = [](TrainingRank& run) {
    NormRecomputation norms(run.plan, make_dataset(run.plan.train), *run.backend, run.communicator(), run.watchdog);
    EXPECT_TRUE(norms.measure(run.trainer->weights(), 2, {}));
    return std::vector<float>(norms.values().begin(), norms.values().end());
  };
  const std::vector<float> found = measured(shared), expected = alone.values(measured);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 1e-4f * (1 + std::abs(expected[i]))) << i;
}

// The second forward pass of a recomputed block needs the statistics of the whole group, too.
TEST_F(NormSpanTraining, RecomputedBlocksChangeNoBit) {
  SKIP_UNLESS_RANKS_CAN_SHARE_WORKERS();
  TrainingRank plain(experiment(3, kResnet), false);
  TrainingRank again(experiment(3, kResnet, {"memory.recompute=[conv1,layer1,layer3.0]"}), false);
  EXPECT_LT(again.backend->allocated_bytes(), plain.backend->allocated_bytes());
  for (int step = 0; step < 3; ++step) {
    const StepReport a = again.trainer->step({}), b = plain.trainer->step({});
    EXPECT_EQ(a.loss, b.loss) << step;
    EXPECT_EQ(a.gradient_norm, b.gradient_norm) << step;
  }
  EXPECT_EQ(again.weights(), plain.weights());
}

// A checkpoint says how large the passes were. The resumed run has passes of another size when it shares workers and
// the first run did not, or the other way round.
TEST_F(NormSpanTraining, ARunGoesOnWithWorkersSharedAndWhole) {
  SKIP_UNLESS_RANKS_CAN_SHARE_WORKERS();
  const Experiment e = experiment(3, kResnet);
  TrainingRank first(e, false);
  first.steps(3);
  const Checkpoint checkpoint = first.snapshot();
  const std::vector<StepReport> expected = first.steps(2);
  const std::int64_t of_checkpoint = first.plan.batch.micro_batch;
  const DatasetIndex index = read_dataset_index(e.data.train);
  for (const int ranks : {1, 2, 3, 4, 6, 12}) {
    const RunPlan plan =
        make_run_plan(e, index, nullptr, ranks, *first.backend, micro_batch_of_checkpoint(of_checkpoint));
    EXPECT_EQ(plan.batch.micro_batch * plan.batch.span % 4, 0) << ranks;
  }
  TrainingRank resumed(e, false, &checkpoint);
  const std::vector<StepReport> reports = resumed.steps(2);
  for (std::size_t i = 0; i < reports.size(); ++i) EXPECT_EQ(reports[i].loss, expected[i].loss) << i;
  if (session().rank() != 0) {  // rank 0 has the checkpoint and splits the job
    session().job().split(session().rank());
    return;
  }
  TrainingRank whole(e, false, &checkpoint, true);
  EXPECT_EQ(whole.plan.batch.span, 1);
  EXPECT_NEAR(whole.steps(1)[0].loss, expected[0].loss, 1e-4 * expected[0].loss);
}

}  // namespace
}  // namespace ringtrain
