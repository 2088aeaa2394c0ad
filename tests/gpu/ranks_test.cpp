// Tests ranks that sum gradients on GPUs, by NCCL itself and through host memory. mpirun starts the ranks. One rank
// alone is a valid test, too. Several ranks on one GPU need a different NCCL_HOSTID each (tests/gpu/rank.sh).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "backend/cuda/device/libraries.h"
#include "base/clock.h"
#include "base/error.h"
#include "cluster/binding.h"
#include "cluster/device_communicator.h"
#include "cluster/gradient_reducer.h"
#include "cluster/nccl_connection.h"
#include "tests/emulation/fake_nccl.h"
#include "tests/emulation/host_device.h"
#include "tests/gpu/gpu.h"
#include "tests/mpi/ring_beside_device.h"

namespace ringtrain::cuda {
namespace {

constexpr std::int64_t kSummedElements = 1'000'003;
constexpr std::int64_t kBucket = 131'072;

class GpuRanks : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (session().size() > 1 && visible_devices() < session().node_size() && !on_host_device() &&
        !nccl_may_share_devices() && GetParam() != "host memory")
      GTEST_SKIP() << "several ranks on one GPU, and NCCL_HOSTID is not set";
    ring_ = make_mpi_communicator(session().job(), 1 << 17);
    if (GetParam() == "host memory") {
      sums_ = make_staged_communicator(gpu(), *ring_);
      return;
    }
    NcclOptions options{.timeout_seconds = 20};
    if (GetParam() == "bf16") options.gradient_type = Type::bf16;
    if (GetParam() == "fp16") options.gradient_type = Type::fp16;
    if (GetParam() == "ring" || GetParam() == "tree") options.algorithm = GetParam();
    if (GetParam() == "fixed order") options.fixed_order_elements = kBucket;
    if (on_host_device()) {
      fake_ = std::make_unique<FakeNccl>(dynamic_cast<HostDevice&>(gpu()), [this](std::span<float> values) {
        if (broadcasting_ && ring_->rank() != 0) std::ranges::fill(values, 0.0f);
        ring_->sum(values);
      });
      fake_->exchange = exchange_over(session().job());
    }
    sums_ = make_nccl_communicator(fake_ ? fake_->api() : nccl_api(), gpu(), *ring_, options);
    if (session().rank() == 0) std::printf("%s\n", sums_->describe().c_str());
  }
  void TearDown() override {
    sums_.reset();
    unsetenv("NCCL_ALGO");
  }
  void to_gpu(const std::vector<float>& from, float* to) {
    gpu().copy(to, from.data(), std::ssize(from) * 4, CopyKind::to_device, gpu().compute_stream());
  }
  std::vector<float> from_gpu(const float* from) {
    std::vector<float> values(kSummedElements);
    const Event end = gpu().make_event();
    gpu().copy(values.data(), from, kSummedElements * 4, CopyKind::to_host, gpu().compute_stream());
    gpu().record(end, gpu().compute_stream());
    gpu().synchronize(end, [&] { sums_->poll(); });
    return values;
  }

  bool broadcasting_ = false;
  std::unique_ptr<Communicator> ring_;
  std::unique_ptr<FakeNccl> fake_;
  std::unique_ptr<DeviceCommunicator> sums_;
};

// Whole numbers below 2^6. They and their sums over up to 4 ranks are exact in every type.
float value(std::int64_t i, int rank, int step) {
  return static_cast<float>((i * 7 + rank * 13 + step * 5) % 127 - 63);
}

TEST_P(GpuRanks, BucketsAreSummedExactlyForSeveralSteps) {
  auto* const vector = static_cast<float*>(sums_->allocate(kSummedElements * 4));
  GradientReducer reducer(*sums_, {vector, kSummedElements}, kBucket);
  std::vector<float> mine(kSummedElements);
  for (int step = 0; step < 5; ++step) {
    for (std::int64_t i = 0; i < kSummedElements; ++i)
      mine[static_cast<std::size_t>(i)] = value(i, session().rank(), step);
    reducer.begin();
    to_gpu(mine, vector);
    for (std::int64_t watermark = 0; watermark < kSummedElements; watermark += 77'777 + 1000 * session().rank())
      reducer.ready(watermark);
    std::vector<double> counters = {1, session().rank() + 0.5};
    reducer.finish(counters);
    const std::vector<float> sums = from_gpu(vector);
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < kSummedElements; ++i) {
      float expected = 0;
      for (int r = 0; r < session().size(); ++r) expected += value(i, r, step);
      wrong += sums[static_cast<std::size_t>(i)] != expected;
    }
    EXPECT_EQ(wrong, 0) << "step " << step;
    EXPECT_EQ(counters[0], session().size());
  }
  sums_->release(vector);
}

TEST_P(GpuRanks, SumsOfAnyValuesHaveTheSameBitsOnAllRanksAndEachTime) {
  auto* const vector = static_cast<float*>(sums_->allocate(kSummedElements * 4));
  GradientReducer reducer(*sums_, {vector, kSummedElements}, kBucket);
  std::vector<float> mine(kSummedElements), first;
  for (std::int64_t i = 0; i < kSummedElements; ++i)
    mine[static_cast<std::size_t>(i)] = static_cast<float>(std::sin(static_cast<double>(i * (session().rank() + 2))));
  for (int repetition = 0; repetition < 2; ++repetition) {
    reducer.begin();
    to_gpu(mine, vector);
    reducer.finish({});
    const std::vector<float> sums = from_gpu(vector);
    std::vector<float> of_rank_0 = sums;
    ring_->broadcast(std::as_writable_bytes(std::span(of_rank_0)), 0);
    EXPECT_EQ(sums, of_rank_0);
    if (repetition == 0) first = sums;
    EXPECT_EQ(sums, first);
  }
  if (GetParam() == "fixed order") {
    make_mpi_communicator(session().job(), 1 << 17, 0x7fffffff, {.algorithm = "halving"})->sum(std::span(mine));
    EXPECT_EQ(first, mine) << "the tree of host memory";
  }
  sums_->release(vector);
}

TEST_P(GpuRanks, WeightsOfRank0ReachAllRanks) {
  auto* const vector = static_cast<float*>(sums_->allocate(kSummedElements * 4));
  std::vector<float> mine(kSummedElements), of_rank_0(kSummedElements);
  for (std::int64_t i = 0; i < kSummedElements; ++i) {
    mine[static_cast<std::size_t>(i)] = value(i, session().rank(), 3);
    of_rank_0[static_cast<std::size_t>(i)] = value(i, 0, 3);
  }
  to_gpu(mine, vector);
  broadcasting_ = true;
  sums_->broadcast_vector({vector, kSummedElements}, 0);
  EXPECT_EQ(from_gpu(vector), of_rank_0);
  broadcasting_ = false;
  sums_->release(vector);
}

INSTANTIATE_TEST_SUITE_P(Ways, GpuRanks,
                         testing::Values("fp32", "bf16", "fp16", "ring", "tree", "fixed order", "host memory"),
                         [](const auto& information) {
                           std::string name = information.param;
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

// One rank does not take part in a sum. The other ranks must say so, end NCCL, and keep a device that works.
TEST(GpuRanksAbort, ARankThatDoesNotComeIsNamedByItsBucketAndTheDeviceLives) {
  if (session().size() < 2) GTEST_SKIP() << "needs two ranks";
  if (on_host_device() || (visible_devices() < session().node_size() && !nccl_may_share_devices()))
    GTEST_SKIP() << "needs NCCL and a GPU for each rank, or NCCL_HOSTID";
  const auto ring = make_mpi_communicator(session().job(), 1 << 17);
  const auto sums = make_nccl_communicator(nccl_api(), gpu(), *ring, {.timeout_seconds = 3});
  auto* const vector = static_cast<float*>(sums->allocate(kSummedElements * 4));
  sums->sum(std::span<float>(vector, kSummedElements));  // this sum of all ranks makes the connections
  const Event end = gpu().make_event();
  std::string error;
  const double begin = now_seconds();
  if (session().rank() != session().size() - 1) try {
      sums->sum(std::span<float>(vector, kSummedElements));
      gpu().record(end, gpu().compute_stream());
      gpu().synchronize(end, [&] { sums->poll(); });
    } catch (const Error& e) {
      error = e.what();
    }
  if (session().rank() != session().size() - 1) {
    EXPECT_NE(error.find("the sum of bucket 0 (gradients 0 to 1000003) took more than 3 s"), std::string::npos)
        << error;
    EXPECT_LT(now_seconds() - begin, 15);
  }
  ring->barrier();
  sums->abort("the test is over");
  sums->release(vector);
  gpu().record(end, gpu().compute_stream());
  gpu().synchronize(end, [] {});
}

}  // namespace
}  // namespace ringtrain::cuda
