// Tests the NCCL communicator of one rank, on a host device whose streams run in any order that events allow. The other
// ranks do not exist: the test adds their numbers to the sums.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/small_floats.h"
#include "cluster/device_communicator.h"
#include "cluster/gradient_reducer.h"
#include "cluster/nccl_connection.h"
#include "tests/emulation/fake_nccl.h"
#include "tests/emulation/host_device.h"
#include "tests/unit/scripted_host.h"
#include "tests/unit/with_environment.h"

namespace ringtrain {
namespace {

using cuda::HostDevice;
using cuda::RunOrder;
using cuda::Type;

constexpr std::int64_t kCount = 1000;

class NcclCommunicator : public testing::Test {
  const WithEnvironment environment_{{}, {"NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS"}};
};

float mine(std::int64_t i, int step) {
  return static_cast<float>((i * 37 + step * 11) % 201 - 100);
}
void add_others(std::span<float> values) {
  for (float& v : values) v = 4 * v + 1;
}

// A GPU on which sums, and all work that waits for them, never end once `stuck` is set.
class StuckDevice final : public HostDevice {
 public:
  using HostDevice::HostDevice;
  bool stuck = false;
  void record(cuda::Event event, cuda::Stream stream) override {
    if (held_up_.contains(stream.handle) || (stuck && stream != compute_stream())) never_.insert(event.handle);
    HostDevice::record(event, stream);
  }
  void wait(cuda::Stream stream, cuda::Event event) override {
    if (never_.contains(event.handle)) held_up_.insert(stream.handle);
    HostDevice::wait(stream, event);
  }
  bool done(cuda::Event event) override { return !never_.contains(event.handle) && HostDevice::done(event); }

 private:
  std::set<std::uintptr_t> never_, held_up_;
};

// One rank with its device, its NCCL and a flat vector of gradients.
struct Rank {
  StuckDevice device;
  ScriptedHost host;
  FakeNccl nccl;
  std::unique_ptr<DeviceCommunicator> communicator;
  std::span<float> gradients;
  float* source = nullptr;  // page-locked; the "backward pass" copies it to the gradients

  explicit Rank(NcclOptions options = {}, RunOrder order = {}, int rank = 2, int ranks = 4,
                const std::function<void(FakeNccl&)>& prepare = {},
                const std::function<void(std::span<float>)>& sum = add_others)
      : device({order, {}, {}}), host(rank, ranks), nccl(device, sum) {
    if (prepare) prepare(nccl);
    communicator = make_nccl_communicator(nccl.api(), device, host, options);
  }
  ~Rank() {
    if (gradients.data() != nullptr) communicator->release(gradients.data());
    communicator.reset();
    if (source != nullptr) device.release_host(source);
  }
  void make_gradients() {
    gradients = {static_cast<float*>(communicator->allocate(kCount * 4)), static_cast<std::size_t>(kCount)};
    source = static_cast<float*>(device.allocate_host(kCount * 4));
  }
  // Stands for a backward pass over [begin, end) in the compute stream.
  void compute(std::int64_t begin, std::int64_t end) {
    device.copy(gradients.data() + begin, source + begin, (end - begin) * 4, cuda::CopyKind::to_device,
                device.compute_stream());
  }
  std::vector<float> result() {
    const cuda::Event event = device.make_event();
    auto* target = static_cast<float*>(device.allocate_host(kCount * 4));
    device.copy(target, gradients.data(), kCount * 4, cuda::CopyKind::to_host, device.compute_stream());
    device.record(event, device.compute_stream());
    device.synchronize(event, [&] { communicator->poll(); });
    std::vector<float> values(target, target + kCount);
    device.release_host(target);
    return values;
  }
  // Runs training steps with random watermarks.
  void steps(int count, std::int64_t bucket, std::mt19937& random) {
    GradientReducer reducer(*communicator, gradients, bucket);
    for (int step = 0; step < count; ++step) {
      device.finish_all();
      for (std::int64_t i = 0; i < kCount; ++i) source[i] = mine(i, step);
      reducer.begin();
      for (std::int64_t watermark = 0; watermark < kCount;) {
        const std::int64_t next = std::min<std::int64_t>(kCount, watermark + 1 + random() % 300);
        compute(watermark, next);
        watermark = next;
        if (random() % 3 != 0) reducer.ready(watermark);
        for (auto polls = random() % 4; polls > 0; --polls) reducer.poll();
      }
      reducer.finish({});
      const std::vector<float> values = result();
      for (std::int64_t i = 0; i < kCount; ++i)
        ASSERT_EQ(values[static_cast<std::size_t>(i)], 4 * mine(i, step) + 1) << "step " << step << ", element " << i;
    }
  }
};

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "'" << text << "' has no '" << part << "'";
}

const RunOrder kOrders[] = {{RunOrder::Kind::at_issue, 0},
                            {RunOrder::Kind::latest, 0},
                            {RunOrder::Kind::random, 1},
                            {RunOrder::Kind::random, 2},
                            {RunOrder::Kind::random, 3}};

// The norm is measured in the sum's own stream, after the values are final and before other ranks' values are added or
// the values are rounded to 16 bits.
TEST_F(NcclCommunicator, ABucketIsMeasuredInItsStreamBeforeItsSum) {
  for (const Type type : {Type::fp32, Type::bf16})
    for (const RunOrder order : {RunOrder{RunOrder::Kind::latest}, RunOrder{RunOrder::Kind::random, 5}}) {
      Rank rank({.gradient_type = type}, order);
      rank.make_gradients();
      auto* const seen = static_cast<float*>(rank.device.allocate_host(kCount * 4));
      for (std::int64_t i = 0; i < kCount; ++i) rank.source[i] = mine(i, 0);
      GradientReducer reducer(*rank.communicator, rank.gradients, 300);
      reducer.begin([&](std::int64_t begin, std::uintptr_t stream) {
        EXPECT_NE(cuda::Stream{stream}, rank.device.compute_stream());
        rank.device.copy(seen + begin, rank.gradients.data() + begin, std::min<std::int64_t>(300, kCount - begin) * 4,
                         cuda::CopyKind::to_host, cuda::Stream{stream});
      });
      rank.compute(0, kCount);
      reducer.finish({});
      const std::vector<float> sums = rank.result();
      for (std::int64_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(seen[i], mine(i, 0)) << i;
        ASSERT_NE(sums[static_cast<std::size_t>(i)], seen[i]);
      }
      rank.device.release_host(seen);
    }
}

TEST_F(NcclCommunicator, SumsAreRightInEveryOrderThatStreamsAndEventsAllow) {
  for (const RunOrder& order : kOrders) {
    Rank rank({}, order);
    rank.make_gradients();
    std::mt19937 random(7);
    rank.steps(4, 130, random);
    EXPECT_TRUE(rank.nccl.misuses.empty()) << rank.nccl.misuses.front();
  }
}

TEST_F(NcclCommunicator, EveryLostWaitBetweenStreamsIsSeen) {
  for (int lost = 0; lost < 2; ++lost) {  // 0: the sums' wait for the backward pass; 1: the update's wait for the sums
    Rank rank({}, {RunOrder::Kind::latest, 0});  // the host must not see the end of the sums
    rank.make_gradients();
    rank.device.skip = [&](const cuda::Call& call) {
      const bool of_compute = call.stream + 1 == rank.device.compute_stream().handle;
      return call.kind == cuda::Call::Kind::wait && of_compute == (lost == 1);
    };
    std::mt19937 random(7);
    const std::string error = error_of([&] { rank.steps(2, 130, random); });
    rank.device.skip = {};
    EXPECT_TRUE(contains(error, "race")) << "lost wait " << lost;
  }
}

TEST_F(NcclCommunicator, BucketsAreHandedOverWhileTheBackwardPassGoesOnAndTheHostWaitsForNone) {
  Rank rank({}, {RunOrder::Kind::latest, 0});
  rank.make_gradients();
  rank.device.finish_all();
  GradientReducer reducer(*rank.communicator, rank.gradients, 250);
  reducer.begin();
  rank.compute(0, 500);
  rank.device.clear_calls();
  reducer.ready(500);
  rank.compute(500, kCount);
  for (const cuda::Call& call : rank.device.calls())  // nothing may delay the backward pass
    EXPECT_FALSE(call.kind == cuda::Call::Kind::wait && call.stream == 0);
  EXPECT_EQ(rank.nccl.count("all_reduce"), 2);
  rank.device.stuck = true;
  reducer.finish({});  // returns before the last sums have ended
  EXPECT_EQ(rank.nccl.count("all_reduce"), 4);
  rank.device.stuck = false;
}

TEST_F(NcclCommunicator, AllRanksCallNcclAlikeWhateverTheirWatermarks) {
  std::vector<std::string> first;
  for (int r = 0; r < 4; ++r) {
    Rank rank({.gradient_type = Type::bf16, .max_ctas = 8}, {RunOrder::Kind::random, static_cast<std::uint64_t>(r)}, r);
    rank.nccl.polls_in_progress = 1 + r;
    rank.make_gradients();
    std::mt19937 random(static_cast<unsigned>(r));
    GradientReducer reducer(*rank.communicator, rank.gradients, 130);
    for (int step = 0; step < 3; ++step) {
      reducer.begin();
      for (std::int64_t watermark = 0; watermark < kCount;) {
        watermark = std::min<std::int64_t>(kCount, watermark + random() % 300);
        reducer.ready(watermark);
        for (auto polls = random() % 5; polls > 0; --polls) reducer.poll();
      }
      reducer.finish({});
    }
    EXPECT_EQ(rank.nccl.count("init_rank of 4, blocks 8, blocking 0"), 1);
    EXPECT_EQ(rank.nccl.count("all_reduce"), 3 * 8);
    EXPECT_TRUE(rank.nccl.misuses.empty()) << rank.nccl.misuses.front();
    std::vector<std::string> calls = rank.nccl.calls;
    std::erase(calls, "get_unique_id");
    if (r == 0) first = calls;
    EXPECT_EQ(calls, first) << "rank " << r;
  }
}

TEST_F(NcclCommunicator, SixteenBitGradientsComeBackAsTheRoundedSumOfRoundedGradients) {
  for (const Type type : {Type::bf16, Type::fp16}) {
    const auto rounded = [&](float v) { return type == Type::bf16 ? from_bf16(to_bf16(v)) : from_fp16(to_fp16(v)); };
    Rank rank({.gradient_type = type}, {RunOrder::Kind::random, 5});
    rank.make_gradients();
    GradientReducer reducer(*rank.communicator, rank.gradients, 300);
    for (int step = 0; step < 2; ++step) {
      for (std::int64_t i = 0; i < kCount; ++i) rank.source[i] = 0.001f * static_cast<float>((i + 1) * (step + 3));
      reducer.begin();
      rank.compute(0, kCount);
      reducer.finish({});
      const std::vector<float> values = rank.result();
      for (std::int64_t i = 0; i < kCount; ++i)
        ASSERT_EQ(values[static_cast<std::size_t>(i)], rounded(4 * rounded(rank.source[i]) + 1)) << i;
    }
    EXPECT_EQ(rank.nccl.count("all_reduce 300 at +0 of 2000 bytes, "), 2);  // the 16-bit buffer is registered
    EXPECT_TRUE(rank.nccl.misuses.empty()) << rank.nccl.misuses.front();
  }
}

TEST_F(NcclCommunicator, SmallGradientsSurviveFp16AndStatisticsTravelInFp32) {
  constexpr std::int64_t trained = 700, targets = 4096;  // in the middle of a bucket
  for (const Type type : {Type::fp16, Type::bf16}) {
    const auto four_alike = [](std::span<float> values) {
      for (float& v : values) v *= 4;
    };
    Rank rank({.gradient_type = type}, {RunOrder::Kind::random, 5}, 2, 4, {}, four_alike);
    rank.make_gradients();
    rank.communicator->set_rounding(gradient_rounding(trained, targets, 1));
    GradientReducer reducer(*rank.communicator, rank.gradients, 300);
    for (std::int64_t i = 0; i < kCount; ++i)
      rank.source[i] = static_cast<float>(1 + i % 7) * (i < trained ? 1e-4f / targets : 1e-6f);
    reducer.begin();
    rank.compute(0, kCount);
    reducer.finish({});
    const std::vector<float> values = rank.result();
    for (std::int64_t i = 0; i < kCount; ++i) {
      const float sum = values[static_cast<std::size_t>(i)], gradient = rank.source[i];
      if (i < trained)
        ASSERT_NEAR(sum, 4 * gradient, 4 * gradient * (type == Type::fp16 ? 0x1p-10 : 0x1p-7)) << i;
      else
        ASSERT_EQ(sum, 4 * gradient) << i;
    }
    EXPECT_EQ(rank.nccl.count("all_reduce 100"), 2);  // the 16-bit part of the split bucket, and the last bucket
    EXPECT_TRUE(rank.nccl.misuses.empty()) << rank.nccl.misuses.front();
  }
}

TEST(GradientRounding, ScalesByAPowerOfTwoThatTheLossScaleHasNotBrought) {
  EXPECT_EQ(gradient_rounding(10, 4096, 1).elements, 10);
  EXPECT_EQ(gradient_rounding(10, 4096, 1).scale, 4096);
  EXPECT_EQ(gradient_rounding(10, 4095, 1).scale, 2048);
  EXPECT_EQ(gradient_rounding(10, 1 << 20, 1).scale, 4096);
  EXPECT_EQ(gradient_rounding(10, 1, 1).scale, 1);
  EXPECT_EQ(gradient_rounding(10, 0, 1).scale, 1);
  EXPECT_EQ(gradient_rounding(10, 4096, 1024).scale, 4);
  EXPECT_EQ(gradient_rounding(10, 4096, 65536).scale, 1);
  EXPECT_EQ(gradient_rounding(10, 4096, 0.25f).scale, 4096);
}

TEST_F(NcclCommunicator, AVectorIsBroadcastBetweenWhatTheComputeStreamHasAndGets) {
  for (const RunOrder& order : kOrders) {
    Rank rank({}, order);
    rank.make_gradients();
    for (std::int64_t i = 0; i < kCount; ++i) rank.source[i] = mine(i, 0);
    rank.compute(0, kCount);
    const int root = rank.communicator->rank();
    rank.communicator->broadcast_vector(rank.gradients, root);
    EXPECT_EQ(rank.result()[123], 4 * mine(123, 0) + 1);
    EXPECT_EQ(rank.nccl.count(cat("broadcast 1000 fp32 from ", root)), 1);
  }
}

TEST_F(NcclCommunicator, VectorsAreZerosInRegisteredMemoryOrInPlainMemoryOnAllRanks) {
  {
    Rank rank;
    rank.make_gradients();
    EXPECT_EQ(rank.nccl.count("register 4000"), 1);
    for (const float v : rank.result()) ASSERT_EQ(v, 0);
  }
  for (const int who : {0, 1, 2}) {
    Rank rank;
    rank.nccl.refuse_allocation = who == 0;
    rank.nccl.refuse_registration = who == 1;
    rank.host.added_by_others = who == 2 ? 1 : 0;  // another rank was refused
    rank.make_gradients();
    for (const float v : rank.result()) ASSERT_EQ(v, 0);
    EXPECT_EQ(rank.nccl.count("release"), who == 0 ? 0 : 1);
    EXPECT_EQ(rank.nccl.count("deregister"), who == 2 ? 1 : 0);
    rank.host.added_by_others = 0;
    std::mt19937 random(1);
    rank.steps(1, 400, random);
    EXPECT_EQ(rank.nccl.count("all_reduce 400 in memory of the device"), 2);
  }
}

TEST_F(NcclCommunicator, AStartThatTakesTooLongNamesTheRankAndEndsNccl) {
  HostDevice device;
  ScriptedHost host(2, 4);
  FakeNccl nccl(device, add_others);
  nccl.never_ready = true;
  const std::string error =
      error_of([&] { make_nccl_communicator(nccl.api(), device, host, {.timeout_seconds = 0.02}); });
  EXPECT_TRUE(contains(error, "rank 2 of 4: the start of NCCL took more than 0.02 s"));
  EXPECT_EQ(nccl.calls.back(), "abort");
  EXPECT_TRUE(nccl.misuses.empty()) << nccl.misuses.front();
}

TEST_F(NcclCommunicator, ASumThatWaitsTooLongNamesRankAndBucketAndNothingIsCalledAfterTheAbort) {
  Rank rank({.timeout_seconds = 0.02});
  rank.make_gradients();
  GradientReducer reducer(*rank.communicator, rank.gradients, 250);
  reducer.begin();
  rank.compute(0, kCount);
  reducer.ready(250);
  rank.device.finish_all();
  rank.communicator->poll();  // bucket 0 has ended
  rank.device.stuck = true;
  reducer.finish({});
  const std::string error = error_of([&] { rank.result(); });
  EXPECT_TRUE(contains(error, "rank 2 of 4: the sum of bucket 1 (gradients 250 to 500) took more than 0.02 s"));
  rank.device.stuck = false;
  const std::vector<std::string> calls = rank.nccl.calls;
  EXPECT_EQ(calls.back(), "abort");
  EXPECT_TRUE(contains(error_of([&] { rank.communicator->start_sum(rank.gradients); }), "after NCCL had been ended"));
  rank.communicator->poll();
  rank.communicator->release(rank.gradients.data());
  rank.gradients = {};
  rank.communicator.reset();
  std::vector<std::string> after(rank.nccl.calls.begin() + std::ssize(calls), rank.nccl.calls.end());
  EXPECT_EQ(after, std::vector<std::string>{"release"});  // releasing memory needs no communicator
  EXPECT_TRUE(rank.nccl.misuses.empty()) << rank.nccl.misuses.front();
}

TEST_F(NcclCommunicator, TheTimeThatABackwardPassTakesIsNoTimeOfTheSum) {
  Rank rank({.timeout_seconds = 0.02}, {RunOrder::Kind::latest, 0});
  rank.make_gradients();
  rank.device.finish_all();
  rank.device.stuck = true;
  const cuda::Stream other = rank.device.make_stream(false);
  const cuda::Event never = rank.device.make_event();
  rank.device.record(never, other);
  auto pending = rank.communicator->start_sum(rank.gradients);
  rank.device.stuck = false;
  EXPECT_FALSE(pending->done());  // the clock starts when the compute stream comes to the sum
}

TEST_F(NcclCommunicator, AnErrorOfNcclNamesRankAndBucketAndEndsNccl) {
  Rank rank({}, {RunOrder::Kind::latest, 0});
  rank.make_gradients();
  GradientReducer reducer(*rank.communicator, rank.gradients, 400);
  reducer.begin();
  rank.compute(0, kCount);
  rank.device.stuck = true;
  reducer.ready(kCount);
  rank.nccl.async = NcclResult::remote_error;
  const std::string error = error_of([&] { rank.communicator->poll(); });
  EXPECT_TRUE(contains(error, "rank 2 of 4: the sum of bucket 0 (gradients 0 to 400) failed: remote process exited"));
  EXPECT_TRUE(contains(error, "said by NCCL"));
  EXPECT_EQ(rank.nccl.calls.back(), "abort");
  rank.device.stuck = false;
}

TEST(NcclAbortDeathTest, AnAbortThatHangsPrintsTheReasonAndEndsTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  NcclApi api;
  api.abort = [](NcclComm*) {
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
    return NcclResult::success;
  };
  EXPECT_EXIT(abort_nccl(api, nullptr, "the sum of bucket 3 failed", 0.05), testing::ExitedWithCode(1),
              "the sum of bucket 3 failed");
}

TEST_F(NcclCommunicator, TheAlgorithmIsToldToNcclUnlessTheUserHasChosen) {
  {
    Rank rank({.algorithm = "tree"});
    EXPECT_STREQ(std::getenv("NCCL_ALGO"), "allreduce:tree");
    EXPECT_EQ(rank.communicator->record().at("NCCL_ALGO"), "allreduce:tree");
    EXPECT_TRUE(contains(rank.communicator->describe(), "NCCL 2.28.9, algorithm allreduce:tree, fp32 gradients"));
  }
  setenv("NCCL_ALGO", "nvls", 1);
  {
    Rank rank({.algorithm = "ring"});
    EXPECT_STREQ(std::getenv("NCCL_ALGO"), "nvls");
  }
  unsetenv("NCCL_ALGO");
  {
    Rank rank({.algorithm = "ring"}, {}, 0, 2, [](FakeNccl& nccl) { nccl.version = 22304; });
    EXPECT_STREQ(std::getenv("NCCL_ALGO"), "ring");
  }
  unsetenv("NCCL_ALGO");
  {
    Rank rank;
    EXPECT_EQ(std::getenv("NCCL_ALGO"), nullptr);
    EXPECT_TRUE(contains(rank.communicator->describe(), "chosen by NCCL"));
  }
}

TEST_F(NcclCommunicator, AnAlgorithmOfMpiIsRefused) {
  for (const char* algorithm : {"halving", "hierarchical", "mpi"}) {
    const std::string message = error_of([&] { Rank rank({.algorithm = algorithm}); });
    EXPECT_TRUE(contains(message, cat("communication.algorithm is '", algorithm, "', which only MPI has"))) << message;
    EXPECT_EQ(std::getenv("NCCL_ALGO"), nullptr);
  }
}

TEST_F(NcclCommunicator, AResumedRunTakesItsVariablesUnlessTheUserSetsOthers) {
  std::map<std::string, std::string> first;
  {
    setenv("NCCL_PROTO", "Simple", 1);
    setenv("NCCL_MIN_NCHANNELS", "8", 1);
    Rank rank({.algorithm = "tree"});
    first = rank.communicator->record();
    EXPECT_EQ(first.at("NCCL_PROTO"), "Simple");
  }
  const auto clear = [] {
    for (const char* name : {"NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS"}) unsetenv(name);
  };
  clear();
  {
    Rank resumed({.algorithm = "tree", .kept = first});
    EXPECT_EQ(resumed.communicator->record(), first);
  }
  clear();
  setenv("NCCL_PROTO", "LL128", 1);
  {
    Rank resumed({.algorithm = "ring", .kept = first});
    const auto now = resumed.communicator->record();
    EXPECT_EQ(now.at("NCCL_PROTO"), "LL128");
    EXPECT_EQ(now.at("NCCL_MIN_NCHANNELS"), "8");
    EXPECT_EQ(now.at("NCCL_ALGO"), "allreduce:ring") << "the experiment asks for another algorithm now";
  }
  clear();
}

TEST_F(NcclCommunicator, RanksThatWouldChooseDifferentAlgorithmsAreTold) {
  HostDevice device;
  ScriptedHost host(1, 2);
  host.text_of_rank_0 = "NCCL_ALGO = ring\n";
  FakeNccl nccl(device, add_others);
  const std::string error = error_of([&] { make_nccl_communicator(nccl.api(), device, host, {}); });
  EXPECT_TRUE(contains(error, "rank 1 would use NCCL in another way than rank 0"));
  EXPECT_TRUE(contains(error, "NCCL_ALGO = ring"));
  EXPECT_EQ(nccl.count("init_rank"), 0);
}

}  // namespace
}  // namespace ringtrain
