#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "cluster/device_communicator.h"
#include "cluster/gradient_reducer.h"
#include "tests/emulation/host_device.h"
#include "tests/unit/scripted_host.h"

namespace ringtrain {
namespace {

using cuda::CopyKind;
using cuda::HostDevice;
using cuda::RunOrder;

constexpr std::int64_t kElements = 1000;

// Runs three steps of a reducer with random watermarks. Succeeds when every sum is right.
testing::AssertionResult trains(HostDevice& device) {
  ScriptedHost host(0, 2);
  host.sum_over_ranks = [](std::span<float> values) {
    for (float& v : values) v = 3 * v + 1;
  };
  const auto communicator = make_staged_communicator(device, host);
  auto* const vector = static_cast<float*>(communicator->allocate(kElements * 4));
  auto* const source = static_cast<float*>(device.allocate_host(kElements * 4));
  auto* const target = static_cast<float*>(device.allocate_host(kElements * 4));
  const cuda::Stream compute = device.compute_stream();
  const cuda::Event end = device.make_event();
  std::mt19937 random(3);
  GradientReducer reducer(*communicator, {vector, kElements}, 130);
  for (int step = 0; step < 3; ++step) {
    for (std::int64_t i = 0; i < kElements; ++i) source[i] = static_cast<float>(i * (step + 1) % 97);
    reducer.begin();
    for (std::int64_t watermark = 0; watermark < kElements;) {
      const std::int64_t next = std::min<std::int64_t>(kElements, watermark + 1 + random() % 300);
      device.copy(vector + watermark, source + watermark, (next - watermark) * 4, CopyKind::to_device, compute);
      watermark = next;
      reducer.ready(watermark);
      for (auto polls = random() % 4; polls > 0; --polls) communicator->poll();
    }
    reducer.finish({});
    device.copy(target, vector, kElements * 4, CopyKind::to_host, compute);
    device.record(end, compute);
    device.synchronize(end, [&] { communicator->poll(); });
    for (std::int64_t i = 0; i < kElements; ++i)
      if (target[i] != 3 * source[i] + 1)
        return testing::AssertionFailure() << "step " << step << ", element " << i << ": " << target[i];
  }
  communicator->release(vector);
  device.release_host(source);
  device.release_host(target);
  return testing::AssertionSuccess();
}

TEST(StagedCommunicator, SumsAreRightInEveryOrderThatStreamsAndEventsAllow) {
  for (const RunOrder order : {RunOrder{RunOrder::Kind::at_issue}, RunOrder{RunOrder::Kind::latest},
                               RunOrder{RunOrder::Kind::random, 1}, RunOrder{RunOrder::Kind::random, 2}}) {
    HostDevice device({order, {}, {}});
    EXPECT_TRUE(trains(device));
  }
}

TEST(StagedCommunicator, EveryLostWaitBetweenStreamsIsSeen) {
  for (const bool of_compute : {false, true}) {
    HostDevice device({{RunOrder::Kind::latest, 0}, {}, {}});
    device.skip = [&](const cuda::Call& call) {
      return call.kind == cuda::Call::Kind::wait && (call.stream == 0) == of_compute;
    };
    EXPECT_THROW(trains(device), Error) << of_compute;
    device.skip = {};
  }
}

TEST(StagedCommunicator, AVectorIsBroadcastFromAndToTheDevice) {
  for (const int rank : {0, 1}) {
    HostDevice device({{RunOrder::Kind::latest, 0}, {}, {}});
    ScriptedHost host(rank, 2);
    const auto communicator = make_staged_communicator(device, host);
    auto* const vector = static_cast<float*>(communicator->allocate(400));
    host.bytes_of_root.assign(400, std::byte{0x40});
    communicator->broadcast_vector({vector, 100}, 0);
    device.finish_all();
    EXPECT_EQ(vector[99], rank == 0 ? 0.0f : 3.00392151f);  // 0x40404040
    communicator->release(vector);
  }
}

TEST(StagedCommunicator, RefusesMemoryThatItDidNotAllocate) {
  HostDevice device;
  ScriptedHost host(0, 2);
  const auto communicator = make_staged_communicator(device, host);
  float value = 0;
  EXPECT_THROW(communicator->start_sum(std::span(&value, 1)), Error);
}

}  // namespace
}  // namespace ringtrain
