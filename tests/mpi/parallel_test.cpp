// Compares sharded state and synchronous servers with the ring, and tests their collectives separately.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "backend/cpu/processor.h"
#include "parallel/synchronizer.h"
#include "run/memory.h"
#include "tests/unit/image_shards.h"
#include "training_rank.h"

namespace ringtrain {
namespace {

class Shares : public TrainerTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(TrainerTest::SetUp());
    write_image_shards((folder_ / "images").string(), raw_images(144, 16, 16), 2);
  }
  // A residual network with batch norm.
  Experiment images(const Settings& more) const {
    return image_experiment("images", 16,
                            "model: {kind: resnet, depth: 18, width: 16, stem: small, zero_gamma: false}\n"
                            "batch: {global: 24, worker: 2, micro: 2}\n"
                            "optimizer: {kind: sgd, momentum: 0.9, weight_decay: 0.001}\n"
                            "learning_rate: {base: 0.01}\n",
                            more);
  }
};

// Compares for each tensor the norm of the difference of the two updates with the norm of the ring's update.
void expect_same_updates(const ParameterTable& parameters, const std::vector<float>& before,
                         const std::vector<float>& ring, const std::vector<float>& own, double tolerance) {
  for (const Parameter& p : parameters.all()) {
    double difference = 0, update = 0;
    for (std::int64_t i = p.offset; i < p.offset + p.count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      difference += std::pow(static_cast<double>(own[at]) - static_cast<double>(ring[at]), 2);
      update += std::pow(static_cast<double>(ring[at]) - static_cast<double>(before[at]), 2);
    }
    EXPECT_GT(update, 0) << p.name;
    EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(update)) << p.name;
  }
}

// Returns the ways of sharing: sharded state, and one to three servers, but not more servers than ranks.
std::vector<Settings> ways() {
  std::vector<Settings> all = {{"parallel.shard_state=true"}};
  for (int servers = 1; servers <= std::min(3, session().size()); ++servers)
    all.push_back({"parallel.kind=server", cat("parallel.servers=", servers)});
  return all;
}

float value_of(int rank, std::size_t i) {
  return static_cast<float>((static_cast<int>(i) * 7 + rank * 13) % 101 - 50) / 8;
}

TEST(HalvesOfASum, LeaveEachRankItsPieceAndBringItToAll) {
  const auto ring = make_mpi_communicator(session().job(), 256);
  const int ranks = ring->size();
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{1000}, std::size_t{7777}}) {
    const std::int64_t piece = shard_piece(static_cast<std::int64_t>(size), ranks);
    std::vector<float> values(size), expected(size, 0.0f);
    for (std::size_t i = 0; i < size; ++i) {
      values[i] = value_of(ring->rank(), i);
      for (int r = 0; r < ranks; ++r) expected[i] += value_of(r, i);  // exact in fp32
    }
    ring->start_reduce_scatter(values, piece)->finish();
    const std::size_t begin = std::min(size, static_cast<std::size_t>(ring->rank() * piece));
    const std::size_t end = std::min(size, begin + static_cast<std::size_t>(piece));
    for (std::size_t i = 0; i < size; ++i) {
      if (i >= begin && i < end)
        ASSERT_EQ(values[i], expected[i]) << i << " of " << size;
      else
        values[i] = -1e9f;
    }
    ring->start_all_gather(values, piece)->finish();
    ASSERT_EQ(values, expected) << size;
  }
}

TEST(RootSums, AddInTheOrderOfTheRanksAndBroadcastFromTheRoot) {
  const auto ring = make_mpi_communicator(session().job(), 128);
  const int ranks = ring->size();
  const std::size_t size = 5003;
  std::vector<std::vector<float>> values(static_cast<std::size_t>(ranks), std::vector<float>(size));
  std::vector<std::unique_ptr<Pending>> pending;
  const auto inexact = [](int rank, std::size_t i) {
    return 1.0f / static_cast<float>(3 + 17 * rank + static_cast<int>(i % 97));
  };
  for (int root = 0; root < ranks; ++root) {
    auto& own = values[static_cast<std::size_t>(root)];
    for (std::size_t i = 0; i < size; ++i) own[i] = inexact(ring->rank(), i);
    pending.push_back(ring->start_root_sum(own, root));
  }
  for (auto& one : pending) one->finish();
  for (int root = 0; root < ranks; ++root) {
    auto& own = values[static_cast<std::size_t>(root)];
    std::vector<float> expected(size);
    for (std::size_t i = 0; i < size; ++i) {
      expected[i] = inexact(0, i);
      for (int r = 1; r < ranks; ++r) expected[i] += inexact(r, i);
    }
    if (ring->rank() == root) {
      ASSERT_EQ(own, expected);
    }
    ring->start_broadcast(own, root)->finish();
    ASSERT_EQ(own, expected);
  }
}

class SharesByPrecision : public Shares, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    if (precision_ == "bf16" && cpu::best_isa() != cpu::Isa::avx512_bf16)
      GTEST_SKIP() << "this CPU has no AVX-512 BF16";
    ASSERT_NO_FATAL_FAILURE(Shares::SetUp());
  }
  const std::string precision_ = GetParam();
};

// With plain SGD the change of a weight is the rate times its gradient. At a large rate, the rounding of the weight is
// negligible.
TEST_P(SharesByPrecision, GiveTheFirstGradientOfTheRing) {
  const Settings keys = {"optimizer.momentum=0", "optimizer.weight_decay=0", "learning_rate.base=100",
                         "communication.bucket_mib=0.002", "precision=" + precision_};
  using With = std::function<Experiment(const Settings&)>;
  const With text = [&](const Settings& more) {
    return experiment("names", Settings{"optimizer.kind=sgd", "optimizer.clip_norm=0"} + more);
  };
  const With pictures = [&](const Settings& more) { return images(more); };
  for (const With& with : {text, pictures}) {
    TrainingRank ring(with(keys), false);
    const std::vector<float> before = ring.weights();
    ring.steps(1);
    for (const Settings& way : ways()) {
      TrainingRank rank(with(keys + way), false);
      SCOPED_TRACE(cat(rank.plan.experiment.model.kind, " ", way.back()));
      rank.steps(1);
      expect_same_updates(rank.plan.parameters, before, ring.weights(), rank.weights(), 1e-5);
    }
  }
}

TEST_P(SharesByPrecision, GiveTheCurveOfTheRingOnImages) {
  const Settings keys = {"precision=" + precision_};
  TrainingRank ring(images(keys), false);
  const auto expected = ring.steps(8);
  const std::vector<Settings> all = ways();
  for (const Settings& way : {all.front(), all.back()}) {
    SCOPED_TRACE(way.back());
    TrainingRank rank(images(keys + way), false);
    const auto reports = rank.steps(8);
    for (std::size_t i = 0; i < reports.size(); ++i)
      ASSERT_NEAR(reports[i].loss, expected[i].loss, 1e-2 * expected[i].loss) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, SharesByPrecision, testing::Values("fp32", "bf16"),
                         [](const auto& information) { return std::string(information.param); });

TEST_F(Shares, GiveTheCurveOfTheRing) {
  const std::vector<Settings> optimizers = {
      {"optimizer.kind=adam"},
      {"optimizer.kind=sgd", "optimizer.clip_norm=0.3"},
      {"optimizer.kind=lars", "optimizer.weight_decay=0.001", "optimizer.trust_coefficient=0.02",
       "optimizer.record_trust_every_steps=1"},
      {"optimizer.kind=lamb", "optimizer.weight_decay=0.01", "optimizer.record_trust_every_steps=1"},
      {"optimizer.kind=adamw", "optimizer.schedule_free=true"},
      {"optimizer.half_life.beta1=300", "average.half_life=200"}};
  for (const Settings& optimizer : optimizers) {
    const Settings common = optimizer + Settings{"communication.bucket_mib=0.002"};
    TrainingRank ring(experiment("names", common), false);
    const std::vector<float> initial = ring.weights();
    const auto expected = ring.steps(8);
    const Checkpoint of_ring = ring.snapshot();
    for (const Settings& way : ways()) {
      SCOPED_TRACE(optimizer[0] + " " + way.back());
      TrainingRank rank(experiment("names", common + way), false);
      const auto reports = rank.steps(8);
      for (std::size_t i = 0; i < reports.size(); ++i) {
        const double tolerance = i == 0 ? 1e-6 : 1e-4;
        ASSERT_NEAR(reports[i].loss, expected[i].loss, tolerance * expected[i].loss) << i;
        ASSERT_NEAR(reports[i].gradient_norm, expected[i].gradient_norm, 10 * tolerance * expected[i].gradient_norm)
            << i;
        ASSERT_EQ(reports[i].trust_ratios.size(), expected[i].trust_ratios.size());
        for (std::size_t k = 0; k < expected[i].trust_ratios.size(); ++k)
          ASSERT_NEAR(reports[i].trust_ratios[k], expected[i].trust_ratios[k], 1e-2f * expected[i].trust_ratios[k]);
      }
      EXPECT_LT(largest_difference(rank.weights(), ring.weights()), 2e-2 * largest_difference(ring.weights(), initial));
      const Checkpoint own = rank.snapshot();
      ASSERT_EQ(own.arrays.size(), of_ring.arrays.size());
      for (std::size_t a = 0; a < own.arrays.size(); ++a) {
        EXPECT_EQ(own.arrays[a].name, of_ring.arrays[a].name);
        float size = 0;
        for (const float v : of_ring.arrays[a].values) size = std::max(size, std::abs(v));
        EXPECT_LE(largest_difference(own.arrays[a].values, of_ring.arrays[a].values), 2e-2 * static_cast<double>(size))
            << own.arrays[a].name;
      }
    }
  }
}

// One way writes the checkpoint, and another way resumes from it. The result must be that of the ring without a stop.
TEST_F(Shares, GoOnFromEachOthersCheckpoints) {
  const Settings common = {"optimizer.kind=adamw", "optimizer.weight_decay=0.01", "communication.bucket_mib=0.002"};
  TrainingRank ring(experiment("names", common), false);
  ring.steps(4);
  const Checkpoint at_4 = ring.snapshot();
  ring.steps(4);
  for (const Settings& way : ways()) {
    SCOPED_TRACE(way.back());
    const Experiment own = experiment("names", common + way);
    TrainingRank first(own, false, &at_4);
    const Checkpoint same = first.snapshot();  // the state is whole again after it was split into parts
    for (std::size_t a = 0; a < same.arrays.size(); ++a)
      EXPECT_EQ(same.arrays[a].values, at_4.arrays[a].values) << same.arrays[a].name;
    first.steps(2);
    const Checkpoint at_6 = first.snapshot();
    TrainingRank second(experiment("names", common), false, &at_6);
    second.steps(2);
    EXPECT_LT(largest_difference(second.weights(), ring.weights()), 1e-4);
  }
}

TEST_F(Shares, TakeTheMemoryThatThePlanSays) {
  for (const Settings& way : ways()) {
    TrainingRank rank(experiment("names", way), false);
    std::int64_t planned = 0, taken = 0, whole = 0;
    for (const MemoryItem& item : rank_memory(rank.plan, *rank.backend, session().rank()))
      if (item.what.starts_with("optimizer state ")) planned += item.bytes;
    for (const auto& vector : rank.trainer->optimizer().state()) {
      taken += vector->size() * 4;
      whole += rank.plan.parameters.trained() * 4;
    }
    EXPECT_EQ(planned, taken) << way.back();
    if (session().size() > 1 && way.back() == "parallel.shard_state=true") {
      EXPECT_LT(taken, whole * 3 / 4);
    }
  }
}

}  // namespace
}  // namespace ringtrain
