// Compares sharded state and synchronous servers on (host) devices with the ring on the same devices. Messages go
// through NCCL or through host memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "run/memory.h"
#include "training_rank.h"

namespace ringtrain {
namespace {

class DeviceShares : public TrainerTest {
 protected:
  void expect_curve_of_ring(const std::string& library) const;
};

std::vector<Settings> device_ways() {
  std::vector<Settings> all = {{"parallel.shard_state=true"}};
  all.push_back({"parallel.kind=server", "parallel.servers=1"});
  if (session().size() > 1)
    all.push_back({"parallel.kind=server", cat("parallel.servers=", std::min(3, session().size()))});
  return all;
}

// A sum over two ranks has the same bits in every order. The weights then have the same bits, too, unless the update
// depends on a norm of a tensor or of the whole gradient.
void expect_as_ring(TrainingRank& rank, const std::vector<StepReport>& reports, TrainingRank& ring,
                    const std::vector<StepReport>& expected, const std::vector<float>& initial, bool same_bits) {
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const double tolerance = i == 0 ? 1e-6 : 1e-4;
    ASSERT_NEAR(reports[i].loss, expected[i].loss, tolerance * expected[i].loss) << i;
    ASSERT_NEAR(reports[i].gradient_norm, expected[i].gradient_norm, 10 * tolerance * expected[i].gradient_norm) << i;
    ASSERT_EQ(reports[i].trust_ratios.size(), expected[i].trust_ratios.size());
    for (std::size_t k = 0; k < expected[i].trust_ratios.size(); ++k)
      ASSERT_NEAR(reports[i].trust_ratios[k], expected[i].trust_ratios[k], 1e-2f * expected[i].trust_ratios[k]);
  }
  if (same_bits && session().size() <= 2) {
    EXPECT_EQ(rank.weights(), ring.weights());
  }
  EXPECT_LT(largest_difference(rank.weights(), ring.weights()), 2e-2 * largest_difference(ring.weights(), initial));
  const Checkpoint own = rank.snapshot(), of_ring = ring.snapshot();
  ASSERT_EQ(own.arrays.size(), of_ring.arrays.size());
  for (std::size_t a = 0; a < own.arrays.size(); ++a) {
    float size = 0;
    for (const float v : of_ring.arrays[a].values) size = std::max(size, std::abs(v));
    EXPECT_LE(largest_difference(own.arrays[a].values, of_ring.arrays[a].values), 2e-2 * static_cast<double>(size))
        << own.arrays[a].name;
  }
}

void DeviceShares::expect_curve_of_ring(const std::string& library) const {
  const std::vector<Settings> optimizers = {
      {"optimizer.kind=adam", "optimizer.clip_norm=0"},
      {"optimizer.kind=sgd", "optimizer.clip_norm=0.3"},
      {"optimizer.kind=lars", "optimizer.weight_decay=0.001", "optimizer.trust_coefficient=0.02",
       "optimizer.record_trust_every_steps=1"},
      {"optimizer.kind=lamb", "optimizer.weight_decay=0.01", "optimizer.record_trust_every_steps=1"},
      {"optimizer.kind=adamw", "optimizer.schedule_free=true", "optimizer.clip_norm=0"},
      {"average.half_life=200", "optimizer.half_life.beta1=300", "optimizer.clip_norm=0"}};
  for (const Settings& optimizer : optimizers) {
    const Settings common = optimizer + Settings{"communication.bucket_mib=0.002", "communication.library=" + library};
    TrainingRank ring(experiment("names", common), true);
    const std::vector<float> initial = ring.weights();
    const auto expected = ring.steps(5);
    for (const Settings& way : device_ways()) {
      SCOPED_TRACE(cat(library, " ", optimizer[0], " ", way.back()));
      TrainingRank rank(experiment("names", common + way), true);
      const auto reports = rank.steps(5);
      expect_as_ring(rank, reports, ring, expected, initial, optimizer.back() == "optimizer.clip_norm=0");
      if (rank.nccl) {
        EXPECT_TRUE(rank.nccl->misuses.empty()) << rank.nccl->misuses.front();
      }
    }
  }
}

TEST_F(DeviceShares, GiveTheCurveOfTheRingThroughHostMemory) {
  expect_curve_of_ring("mpi");
}
TEST_F(DeviceShares, GiveTheCurveOfTheRingByNccl) {
  expect_curve_of_ring("nccl");
}

// A ring on CPUs writes a checkpoint, and devices that share the state resume from it. The test also goes the other way
// round.
TEST_F(DeviceShares, GoOnFromCheckpointsOfTheRing) {
  const Settings common = {"optimizer.kind=adamw", "optimizer.weight_decay=0.01", "communication.bucket_mib=0.002",
                           "communication.library=mpi"};
  TrainingRank ring(experiment("names", common), false);
  ring.steps(4);
  const Checkpoint at_4 = ring.snapshot();
  ring.steps(4);
  for (const Settings& way : device_ways()) {
    SCOPED_TRACE(way.back());
    TrainingRank first(experiment("names", common + way), true, &at_4);
    const Checkpoint same = first.snapshot();
    for (std::size_t a = 0; a < same.arrays.size(); ++a)
      EXPECT_EQ(same.arrays[a].values, at_4.arrays[a].values) << same.arrays[a].name;
    first.steps(2);
    const Checkpoint at_6 = first.snapshot();
    TrainingRank second(experiment("names", common), false, &at_6);
    second.steps(2);
    EXPECT_LT(largest_difference(second.weights(), ring.weights()), 1e-4);
  }
}

// Compared with the ring, these ways save as much memory as the plan says.
TEST_F(DeviceShares, TakeTheMemoryThatThePlanSays) {
  const auto taken_and_planned = [this](const Settings& way) {
    TrainingRank rank(experiment("names", way + Settings{"communication.library=mpi", "optimizer.kind=lamb"}), true);
    rank.steps(2);
    std::int64_t planned = 0;
    for (const MemoryItem& item : rank_memory(rank.plan, *rank.backend, session().rank()))
      if (item.on_device) planned += item.bytes;
    return std::pair(rank.backend->allocated_bytes(), planned);
  };
  const auto [ring_taken, ring_planned] = taken_and_planned({});
  for (const Settings& way : device_ways()) {
    SCOPED_TRACE(way.back());
    const auto [taken, planned] = taken_and_planned(way);
    EXPECT_EQ(ring_taken - taken, ring_planned - planned);
    if (session().size() > 1 && way.back() == "parallel.shard_state=true") {
      EXPECT_LT(taken, ring_taken);
    }
  }
}

}  // namespace
}  // namespace ringtrain
