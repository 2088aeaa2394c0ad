// Ranks that train with their gradients on a (host) device: by NCCL, whose sum is here the ring over MPI, and through
// host memory. Streams run in any order that events allow, on each rank another one.
#include <cmath>
#include <random>

#include "base/error.h"
#include "cluster/device_choice.h"
#include "cluster/gradient_reducer.h"
#include "cluster/nccl_communicator.h"
#include "cluster/staged_communicator.h"
#include "mpi_tests.h"
#include "tests/emulation/fake_nccl.h"
#include "tests/emulation/host_device.h"

namespace ringtrain {
namespace {

using cuda::CopyKind;
using cuda::HostDevice;
using cuda::RunOrder;

constexpr std::int64_t kCount = 777;
constexpr std::int64_t kBucket = 100;
constexpr std::size_t kChunkBytes = 256;

// The gradient of sum (w_i - t_i(rank, step))^2 / 2.
float gradient(float weight, std::int64_t i, int step) {
  const auto target = static_cast<float>(std::sin(static_cast<double>(i + 31 * step + 7 * session().rank())));
  return (weight - target) / static_cast<float>(session().size());
}

// The weights after some steps; `average` makes the gradients' sum over ranks, in place.
std::vector<float> train(const std::function<void(std::vector<float>&, std::span<double>)>& average) {
  std::vector<float> weights(kCount, 0.5f), gradients(kCount);
  for (int step = 0; step < 6; ++step) {
    for (std::int64_t i = 0; i < kCount; ++i)
      gradients[static_cast<std::size_t>(i)] = gradient(weights[static_cast<std::size_t>(i)], i, step);
    std::vector<double> counters = {1, static_cast<double>(session().rank())};
    average(gradients, counters);
    EXPECT_EQ(counters[0], session().size());
    for (std::size_t i = 0; i < kCount; ++i) weights[i] -= 0.3f * gradients[i];
  }
  return weights;
}

std::vector<float> trained_in_host_memory() {
  const auto ring = make_mpi_communicator(session().job(), kChunkBytes);
  return train([&](std::vector<float>& gradients, std::span<double> counters) {
    GradientReducer reducer(*ring, gradients, kBucket);
    reducer.begin();
    reducer.finish(counters);
  });
}

std::vector<float> trained_on(HostDevice& device, DeviceCommunicator& communicator, unsigned seed) {
  auto* const vector = static_cast<float*>(communicator.allocate(kCount * 4));
  auto* const pinned = static_cast<float*>(device.allocate_host(kCount * 4));
  const cuda::Stream compute = device.compute_stream();
  const cuda::Event end = device.make_event();
  std::mt19937 random(seed + static_cast<unsigned>(session().rank()));
  GradientReducer reducer(communicator, {vector, kCount}, kBucket);
  std::vector<float> weights = train([&](std::vector<float>& gradients, std::span<double> counters) {
    std::ranges::copy(gradients, pinned);
    reducer.begin();
    for (std::int64_t watermark = 0; watermark < kCount;) {
      const std::int64_t next = std::min<std::int64_t>(kCount, watermark + 1 + random() % 200);
      device.copy(vector + watermark, pinned + watermark, (next - watermark) * 4, CopyKind::to_device, compute);
      watermark = next;
      if (random() % 2 == 0) reducer.ready(watermark);
      for (auto polls = random() % 4; polls > 0; --polls) reducer.poll();
    }
    reducer.finish(counters);
    device.copy(pinned, vector, kCount * 4, CopyKind::to_host, compute);
    device.record(end, compute);
    device.synchronize(end, [&] { communicator.poll(); });
    std::copy(pinned, pinned + kCount, gradients.begin());
  });
  communicator.release(vector);
  device.release_host(pinned);
  return weights;
}

// The ring, with a device that works while the host waits for counters, as a GPU does: another rank's sum may need this
// rank's part before it comes to its counters.
class RingBesideDevice final : public Communicator {
 public:
  RingBesideDevice(Communicator& ring, HostDevice& device) : ring_(ring), device_(device) {}
  int rank() const override { return ring_.rank(); }
  int size() const override { return ring_.size(); }
  std::string describe() const override { return ring_.describe(); }
  std::unique_ptr<Pending> start_sum(std::span<float> values, const BeforeSum& before) override {
    return ring_.start_sum(values, before);
  }
  std::unique_ptr<Pending> start_sum(std::span<double> values) override {
    return std::make_unique<Waiting>(ring_.start_sum(values), device_);
  }
  void broadcast(std::span<std::byte> bytes, int root) override { ring_.broadcast(bytes, root); }
  void gather(std::span<const float> mine, std::span<float> all, int root) override { ring_.gather(mine, all, root); }
  void scatter(std::span<const float> all, std::span<float> mine, int root) override { ring_.scatter(all, mine, root); }
  void barrier() override { ring_.barrier(); }

 private:
  struct Waiting final : Pending {
    Waiting(std::unique_ptr<Pending> ring_sum, HostDevice& its_device) : sum(std::move(ring_sum)), device(its_device) {}
    bool done() override {
      device.finish_all();
      return sum->done();
    }
    std::unique_ptr<Pending> sum;
    HostDevice& device;
  };
  Communicator& ring_;
  HostDevice& device_;
};

// Whatever the streams' order: at once, as late as possible, and two random ones.
std::vector<RunOrder> orders() {
  const auto rank = static_cast<std::uint64_t>(session().rank());
  return {{RunOrder::Kind::at_issue, 0},
          {RunOrder::Kind::latest, 0},
          {RunOrder::Kind::random, 10 + rank},
          {RunOrder::Kind::random, 20 + rank}};
}

std::function<void(std::span<float>)> sum_over(Communicator& ring) {
  return [&ring](std::span<float> values) { ring.sum(values); };
}

TEST(DeviceCommunicator, RanksThatTrainWithNcclGetTheWeightsOfRanksThatTrainInHostMemory) {
  const std::vector<float> expected = trained_in_host_memory();
  for (const RunOrder& order : orders()) {
    HostDevice device({order, {}, {}});
    const auto ring = make_mpi_communicator(session().job(), kChunkBytes);
    RingBesideDevice host(*ring, device);
    FakeNccl nccl(device, sum_over(*ring));
    nccl.polls_in_progress = 1 + session().rank();
    const auto communicator = make_nccl_communicator(nccl.api(), device, host, {.timeout_seconds = 30});
    EXPECT_EQ(trained_on(device, *communicator, 1), expected);
    EXPECT_EQ(nccl.count("all_reduce"), 6 * 8);
    EXPECT_TRUE(nccl.misuses.empty()) << nccl.misuses.front();
  }
}

TEST(DeviceCommunicator, RanksThatTrainThroughTheHostGetTheSameWeights) {
  const std::vector<float> expected = trained_in_host_memory();
  for (const RunOrder& order : orders()) {
    HostDevice device({order, {}, {}});
    const auto ring = make_mpi_communicator(session().job(), kChunkBytes);
    const auto communicator = make_staged_communicator(device, *ring);
    EXPECT_EQ(trained_on(device, *communicator, 2), expected);
  }
}

TEST(DeviceCommunicator, SixteenBitGradientsTrainToTheSameWeightsOnAllRanksAndNearlyThoseOfFp32) {
  const std::vector<float> expected = trained_in_host_memory();
  for (const cuda::Type type : {cuda::Type::bf16, cuda::Type::fp16}) {
    HostDevice device;
    const auto ring = make_mpi_communicator(session().job(), kChunkBytes);
    RingBesideDevice host(*ring, device);
    FakeNccl nccl(device, sum_over(*ring));
    const auto communicator = make_nccl_communicator(nccl.api(), device, host, {.gradient_type = type});
    const std::vector<float> weights = trained_on(device, *communicator, 3);
    std::vector<float> of_rank_0 = weights;
    ring->broadcast(std::as_writable_bytes(std::span(of_rank_0)), 0);
    EXPECT_EQ(weights, of_rank_0);
    for (std::size_t i = 0; i < kCount; ++i)
      ASSERT_NEAR(weights[i], expected[i], type == cuda::Type::bf16 ? 0.02 : 0.003) << i;
  }
}

TEST(DeviceCommunicator, AVectorOfRank0ReachesAllDevices) {
  for (const bool staged : {false, true}) {
    HostDevice device({{RunOrder::Kind::latest, 0}, {}, {}});
    const auto ring = make_mpi_communicator(session().job(), kChunkBytes);
    // NCCL's broadcast: here the sum of rank 0's values and everybody else's zeros.
    FakeNccl nccl(device, [&](std::span<float> values) {
      if (ring->rank() != 0) std::ranges::fill(values, 0.0f);
      ring->sum(values);
    });
    const auto communicator =
        staged ? make_staged_communicator(device, *ring) : make_nccl_communicator(nccl.api(), device, *ring, {});
    auto* const vector = static_cast<float*>(communicator->allocate(kCount * 4));
    auto* const pinned = static_cast<float*>(device.allocate_host(kCount * 4));
    std::ranges::copy(exact_values(session().rank(), kCount), pinned);
    const cuda::Stream compute = device.compute_stream();
    device.copy(vector, pinned, kCount * 4, CopyKind::to_device, compute);
    communicator->broadcast_vector({vector, kCount}, 0);
    device.copy(pinned, vector, kCount * 4, CopyKind::to_host, compute);
    device.finish_all();
    EXPECT_EQ(std::vector<float>(pinned, pinned + kCount), exact_values(0, kCount)) << staged;
    communicator->release(vector);
    device.release_host(pinned);
  }
}

TEST(DeviceCommunicator, OneRankThatCannotRegisterMemoryMakesAllTakePlainMemory) {
  HostDevice device;
  const auto ring = make_mpi_communicator(session().job(), kChunkBytes);
  RingBesideDevice host(*ring, device);
  FakeNccl nccl(device, sum_over(*ring));
  nccl.refuse_registration = session().rank() == session().size() - 1;
  const auto communicator = make_nccl_communicator(nccl.api(), device, host, {});
  EXPECT_EQ(trained_on(device, *communicator, 4), trained_in_host_memory());
  EXPECT_EQ(nccl.count("all_reduce 100 in memory of the device"), 6 * 7);
  EXPECT_TRUE(nccl.misuses.empty()) << nccl.misuses.front();
}

TEST(DeviceCommunicator, RanksOfANodeTakeOneDeviceEachAndAllOfThemSeeTooFew) {
  std::vector<std::string> all;
  for (int d = 0; d < session().node_size(); ++d) all.push_back("GPU-" + std::to_string(d));
  EXPECT_EQ(choose_device(session().job(), all, false), session().node_rank());
  EXPECT_EQ(choose_device(session().job(), {"GPU-" + std::string(static_cast<std::size_t>(session().rank() + 1), 'x')},
                          false),
            0);
  all.pop_back();
  EXPECT_THROW(choose_device(session().job(), all, false), Error);  // not the last rank alone: the others would go on
}

}  // namespace
}  // namespace ringtrain
