// Tests ranks that train with their gradients on a (host) device. The sums go through NCCL, which the ring over MPI
// stands for here, or through host memory. The streams run in any order that events allow, and in another order on each
// rank.
#include "cluster/device_communicator.h"

#include <cmath>
#include <random>

#include "base/error.h"
#include "cluster/binding.h"
#include "cluster/gradient_reducer.h"
#include "mpi_tests.h"
#include "ring_beside_device.h"
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

// Returns this rank's part of the gradient of the loss. The loss is the mean over ranks of the sum of
// (w_i - t_i(rank, step))^2 / 2.
float gradient(float weight, std::int64_t i, int step) {
  const auto target = static_cast<float>(std::sin(static_cast<double>(i + 31 * step + 7 * session().rank())));
  return (weight - target) / static_cast<float>(session().size());
}

// Returns the weights after some steps. `average` replaces the gradients by their sum over ranks.
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

// Returns the orders in which the streams run: at once, as late as possible, and two random orders.
std::vector<RunOrder> orders() {
  const auto rank = static_cast<std::uint64_t>(session().rank());
  return {{RunOrder::Kind::at_issue, 0},
          {RunOrder::Kind::latest, 0},
          {RunOrder::Kind::random, 10 + rank},
          {RunOrder::Kind::random, 20 + rank}};
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
    FakeNccl nccl(device, sum_over(*ring));
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

// The pieces have equal or different lengths, in fp32 and in rounded types. All types hold the values exactly.
TEST(DeviceCommunicator, HalvesOfSumsAndSumsOnOneRankAreThoseOfHostMemory) {
  const auto value = [](int rank, std::int64_t i) { return static_cast<float>((i * 7 + rank * 13) % 29 - 14); };
  const int ranks = session().size(), rank = session().rank();
  for (const std::string kind : {"staged", "fp32", "fp16"})
    for (const RunOrder& order : orders())
      for (const std::int64_t piece : {std::int64_t{64}, std::int64_t{100}}) {
        const std::int64_t count = piece == 64 ? 64 * ranks : 100 * ranks - 130;
        if (count <= 0) continue;
        SCOPED_TRACE(cat(kind, ", pieces of ", piece));
        HostDevice device({order, {}, {}});
        const auto ring = make_mpi_communicator(session().job(), kChunkBytes);
        RingBesideDevice host(*ring, device);
        FakeNccl nccl(device, sum_over(*ring));
        const auto communicator =
            kind == "staged"
                ? make_staged_communicator(device, *ring)
                : make_nccl_communicator(nccl.api(), device, host,
                                         {.gradient_type = kind == "fp16" ? cuda::Type::fp16 : cuda::Type::fp32});
        auto* const sums = static_cast<float*>(communicator->allocate(count * 4));
        auto* const weights = static_cast<float*>(device.allocate(count * 4, "weights"));
        auto* const pinned = static_cast<float*>(device.allocate_host(count * 4));
        const auto size = static_cast<std::size_t>(count);
        const cuda::Stream compute = device.compute_stream();
        const cuda::Event end = device.make_event();
        const auto fetch = [&](const float* from) {
          device.copy(pinned, from, count * 4, CopyKind::to_host, compute);
          device.record(end, compute);
          device.synchronize(end, [&] { communicator->poll(); });
        };
        const auto give = [&](float* to) {
          for (std::int64_t i = 0; i < count; ++i) pinned[i] = value(rank, i);
          device.copy(to, pinned, count * 4, CopyKind::to_device, compute);
          device.record(end, compute);
          device.synchronize(end, [&] { communicator->poll(); });
        };
        const auto total = [&](std::int64_t i) {
          float sum = 0;
          for (int r = 0; r < ranks; ++r) sum += value(r, i);
          return sum;
        };
        give(sums);
        communicator->start_reduce_scatter({sums, size}, piece, {})->finish();
        fetch(sums);
        for (std::int64_t i = rank * piece; i < std::min(count, (rank + 1) * piece); ++i)
          ASSERT_EQ(pinned[i], total(i)) << i;
        give(weights);
        communicator->start_all_gather({weights, size}, piece)->finish();
        fetch(weights);
        for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(pinned[i], value(static_cast<int>(i / piece), i)) << i;
        const int root = ranks - 1;
        give(sums);
        communicator->start_root_sum({sums, size}, root, {})->finish();
        fetch(sums);
        for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(pinned[i], rank == root ? total(i) : value(rank, i)) << i;
        give(weights);
        communicator->start_broadcast({weights, size}, root)->finish();
        fetch(weights);
        for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(pinned[i], value(root, i)) << i;
        EXPECT_TRUE(nccl.misuses.empty()) << nccl.misuses.front();
        communicator->release(sums);
        device.finish_all();
        device.release(weights);
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
  EXPECT_THROW(choose_device(session().job(), all, false), Error);  // all ranks throw, or the others would go on
}

}  // namespace
}  // namespace ringtrain
