// Tests the device in host memory itself. It delays work that nothing orders, finds accesses that nothing orders,
// freezes captured arguments, and refuses what CUDA refuses.
#include "tests/emulation/host_device.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/pages.h"
#include "base/small_floats.h"

namespace ringtrain::cuda {
namespace {

using Kind = RunOrder::Kind;

constexpr std::int64_t count = 100;

// Copies page-locked values 1 ... 100 through two buffers of the device and two streams to `result`.
struct TwoStreams {
  HostDevice device;
  Stream first, second;
  Event copied = device.make_event(), end = device.make_event();
  float *source, *result, *a, *b;

  explicit TwoStreams(RunOrder order, bool check_races = true)
      : device({.order = order, .check_races = check_races}), first(device.compute_stream()) {
    second = device.make_stream(true);
    source = static_cast<float*>(device.allocate_host(count * 4));
    result = static_cast<float*>(device.allocate_host(count * 4));
    a = static_cast<float*>(device.allocate(count * 4, "a"));
    b = static_cast<float*>(device.allocate(count * 4, "b"));
    std::iota(source, source + count, 1.0f);
  }
  void give(bool wait = true) {
    device.copy(a, source, count * 4, CopyKind::to_device, first);
    device.record(copied, first);
    if (wait) device.wait(second, copied);
    device.copy(b, a, count * 4, CopyKind::on_device, second);
    device.copy(result, b, count * 4, CopyKind::to_host, second);
    device.record(end, second);
  }
  bool arrived() const { return std::equal(source, source + count, result); }
};

std::vector<RunOrder> orders() {
  std::vector<RunOrder> result = {{Kind::at_issue}, {Kind::latest}};
  for (std::uint64_t seed = 0; seed < 30; ++seed) result.push_back({Kind::random, seed});
  return result;
}

TEST(HostDevice, AWaitOrdersTwoStreamsInEveryOrderOfExecution) {
  for (const RunOrder order : orders()) {
    TwoStreams s(order);
    for (int step = 0; step < 3; ++step) {
      s.source[7] = static_cast<float>(step);
      s.give();
      s.device.synchronize(s.end, {});
      EXPECT_TRUE(s.arrived());
      // The second stream reads what the first stream will overwrite in the next step.
      s.device.wait(s.first, s.end);
    }
  }
}

TEST(HostDevice, WithoutTheWaitADelayedStreamGivesSomethingElse) {
  TwoStreams s({Kind::latest}, false);
  s.give(false);
  s.device.synchronize(s.end, {});
  EXPECT_FALSE(s.arrived());
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    TwoStreams r({Kind::random, seed}, false);
    r.give(false);
    r.device.synchronize(r.end, {});
    wrong += !r.arrived();
  }
  EXPECT_GT(wrong, 0);
  EXPECT_LT(wrong, 30);
}

TEST(HostDevice, WithoutTheWaitTheRaceIsNamedInEveryOrderOfExecution) {
  for (const RunOrder order : orders()) {
    TwoStreams s(order);
    try {
      s.give(false);
      FAIL() << "no race was found";
    } catch (const Error& e) {
      EXPECT_NE(
          std::string(e.what()).find("copy (stream 1) is not ordered after copy to device (stream 0), which writes"),
          std::string::npos)
          << e.what();
    }
  }
}

TEST(HostDevice, OverwritingWhatAnotherStreamMayStillReadIsARace) {
  TwoStreams s({Kind::at_issue});
  s.give();
  EXPECT_THROW(s.device.zero(s.a, 4, s.first), Error);
}

TEST(HostDevice, NeighbouringBytesAndCommonReadsAreNoRace) {
  TwoStreams s({Kind::at_issue});
  s.device.zero(s.a, 40, s.first);
  s.device.zero(s.a + 10, 40, s.second);
  s.device.copy(s.b, s.a + 20, 40, CopyKind::on_device, s.first);
  s.device.copy(s.b + 10, s.a + 20, 40, CopyKind::on_device, s.second);
  EXPECT_THROW(s.device.zero(s.a + 29, 4, s.second), Error);
}

TEST(HostDevice, WhatTheHostHasWaitedForIsOrdered) {
  TwoStreams s({Kind::latest});
  s.give();
  s.device.synchronize(s.end, {});
  s.device.zero(s.b, 4, s.first);
}

TEST(HostDevice, WorkRunsOnlyWhenTheHostWaits) {
  TwoStreams s({Kind::latest});
  s.give();
  EXPECT_TRUE(std::isnan(s.result[0])) << "as it was allocated";
  int polls = 0;
  s.device.synchronize(s.end, [&] { ++polls; });
  EXPECT_GT(polls, 1);
  EXPECT_EQ(s.result[0], 1);
}

TEST(HostDevice, PageLockedMemoryIsReadLateAndPageableMemoryAtOnce) {
  TwoStreams s({Kind::latest});
  std::vector<float> pageable(count, 5.0f);
  PageVector<float> owned(count, 6.0f);
  s.device.pin(owned.data(), std::ssize(pages_of(owned)));
  s.device.copy(s.a, pageable.data(), 4, CopyKind::to_device, s.first);
  s.device.copy(s.a + 1, s.source, 4, CopyKind::to_device, s.first);
  s.device.copy(s.a + 2, owned.data(), 4, CopyKind::to_device, s.first);
  pageable[0] = s.source[0] = owned[0] = 77;
  std::array<float, 3> back{};
  s.device.copy(back.data(), s.a, 12, CopyKind::to_host, s.first);
  EXPECT_EQ(back, (std::array<float, 3>{5, 77, 77}));
  s.device.unpin(owned.data());
}

TEST(HostDevice, PinnedMemoryIsWholePagesEachPinnedOnceAndNoCopyLiesPartlyInIt) {
  TwoStreams s({Kind::latest});
  const auto page = static_cast<std::int64_t>(page_bytes());
  PageVector<char> memory(static_cast<std::size_t>(4 * page));
  char* begin = memory.data();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(begin) % page_bytes(), 0u);
  EXPECT_EQ(std::ssize(pages_of(PageVector<float>(3))), page);
  EXPECT_THROW(s.device.pin(begin + 64, page), Error);
  EXPECT_THROW(s.device.pin(begin, page - 4), Error);
  EXPECT_THROW(s.device.pin(begin, 0), Error);
  s.device.pin(begin + page, 2 * page);
  EXPECT_THROW(s.device.pin(begin, 2 * page), Error);
  EXPECT_THROW(s.device.pin(begin + 2 * page, page), Error);
  for (const auto& [from, bytes] : {std::pair(begin + page - 4, 8), {begin + 3 * page - 4, 8}}) {
    EXPECT_THROW(s.device.copy(s.a, from, bytes, CopyKind::to_device, s.first), Error);
    EXPECT_THROW(s.device.copy(from, s.a, bytes, CopyKind::to_host, s.first), Error);
  }
  EXPECT_NO_THROW(s.device.copy(s.a, begin + page, 8, CopyKind::to_device, s.first));
  EXPECT_NO_THROW(s.device.copy(s.a, begin + page - 8, 8, CopyKind::to_device, s.first));
  s.device.unpin(begin + page);
}

TEST(HostDevice, AWaitIsForTheRecordBeforeIt) {
  TwoStreams s({Kind::latest}, false);
  s.device.record(s.copied, s.first);
  s.device.wait(s.second, s.copied);
  s.device.copy(s.a, s.source, 4, CopyKind::to_device, s.first);
  s.device.record(s.copied, s.first);  // the wait came first, so it does not wait for this record
  s.device.record(s.end, s.second);
  s.device.synchronize(s.end, {});
  EXPECT_EQ(s.a[0], 0);
  s.device.synchronize(s.copied, {});
  EXPECT_EQ(s.a[0], 1);
}

TEST(HostDevice, CapturedWorkRunsWhenItIsLaunchedWithTheArgumentsOfItsCapture) {
  TwoStreams s({Kind::at_issue});
  // A weight gradient of a 1 x 1 convolution, dw = alpha x sum of x dy.
  const DnnOperation op = {.kind = DnnKind::weight_gradient,
                           .type = Type::bf16,
                           .math = Math::half,
                           .n = 1,
                           .c = 1,
                           .h = 1,
                           .w = 1,
                           .k = 1,
                           .r = 1};
  const DnnPlan* plan = s.device.plan(op);
  ASSERT_EQ(plan, s.device.plan(op)) << "plans of equal operations are made once";
  const std::uint16_t two = to_bf16(2), three = to_bf16(3);
  void* x = s.device.allocate(2, "x");
  void* dy = s.device.allocate(2, "dy");
  float* dw = static_cast<float*>(s.device.allocate(4, "dw"));
  void* workspace = s.device.allocate(plan->workspace_bytes(), "workspace");
  s.device.copy(x, &two, 2, CopyKind::to_device, s.first);
  s.device.copy(dy, &three, 2, CopyKind::to_device, s.first);

  float alpha = 10;
  std::vector<void*> tensors;
  for (const DnnTensor& t : op.tensors())
    tensors.push_back(t.role == DnnRole::x    ? x
                      : t.role == DnnRole::dy ? dy
                      : t.role == DnnRole::dw ? static_cast<void*>(dw)
                                              : static_cast<void*>(&alpha));
  s.device.clear_calls();
  s.device.begin_capture(s.first);
  s.device.run(*plan, tensors, workspace, s.first);
  s.device.copy(s.a, s.source, 4, CopyKind::to_device, s.first);
  const CapturedGraph graph = s.device.end_capture(s.first);
  EXPECT_EQ(dw[0], 0) << "nothing runs during a capture";
  alpha = 100;
  s.source[0] = 41;
  s.device.launch(graph, s.first);
  EXPECT_EQ(dw[0], 60) << "the number that was passed by value is frozen";
  EXPECT_EQ(s.a[0], 41) << "memory is read when the graph runs";
  ASSERT_EQ(s.device.calls_of(graph).size(), 2u);
  ASSERT_EQ(s.device.flat_calls().size(), 2u);
  EXPECT_EQ(s.device.flat_calls()[0].name, op.key());
}

TEST(HostDevice, RefusesInCapturesWhatCudaRefuses) {
  TwoStreams s({Kind::at_issue});
  s.device.begin_capture(s.first);
  EXPECT_THROW(s.device.allocate(4, "x"), Error);
  EXPECT_THROW(s.device.done(s.end), Error);
  EXPECT_THROW(s.device.synchronize(s.end, {}), Error);
  EXPECT_THROW(s.device.record(s.end, s.first), Error);
  float pageable = 0;
  EXPECT_THROW(s.device.copy(s.a, &pageable, 4, CopyKind::to_device, s.first), Error);
  EXPECT_THROW(s.device.plan(DnnOperation{.kind = DnnKind::matmul, .n = 1, .k = 1, .m = 1}), Error);
  s.device.end_capture(s.first);
}

TEST(HostDevice, NewMemoryIsZeroAndPoisonedMemoryIsNoNumber) {
  HostDevice device;
  auto* memory = static_cast<float*>(device.allocate(400, "numbers"));
  EXPECT_EQ(std::count(memory, memory + 100, 0.0f), 100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 256, 0u);
  EXPECT_EQ(device.allocated_bytes(), 400);
  device.poison({{memory + 1, 4, true}}, device.compute_stream());
  EXPECT_TRUE(std::isnan(memory[1]));
  EXPECT_EQ(memory[2], 0.0f);
  device.release(memory);
  EXPECT_EQ(device.allocated_bytes(), 0);
}

TEST(HostDevice, FindsAddressesThatNobodyAllocatedAndWritesBehindTheEnd) {
  HostDevice device({.memory_bytes = 1000});
  auto* memory = static_cast<char*>(device.allocate(100, "small"));
  EXPECT_THROW(device.allocate(901, "too much"), Error);
  for (const int shift : {-1, 97}) {
    HostDevice other;
    auto* const at = static_cast<char*>(other.allocate(100, "small")) + shift;
    EXPECT_THROW(other.zero(at, 4, other.compute_stream()), Error);
  }
  device.check_guards();
  memory[100] = 0;
  EXPECT_THROW(device.check_guards(), Error);
  memory[100] = static_cast<char>(0xff);
  device.check_guards();
}

// As with CUDA's sticky errors, nothing works until a new device is made. Destructors may still release memory.
TEST(HostDevice, AfterAnErrorOfACommandEveryCallFailsWithItsWords) {
  const auto every_call_fails = [](HostDevice& device, void* memory, Event event, const std::string& words) {
    const Stream stream = device.compute_stream();
    const DnnOperation op = {.kind = DnnKind::matmul, .n = 1, .k = 1, .m = 1};
    const DnnPlan* plan = device.plan(op);
    const std::vector<void*> tensors(op.tensors().size(), memory);
    const std::function<void()> calls[] = {[&] { device.allocate(4, "x"); },
                                           [&] { device.allocate_host(4); },
                                           [&] { device.make_stream(false); },
                                           [&] { device.make_event(); },
                                           [&] { device.record(event, stream); },
                                           [&] { device.wait(stream, event); },
                                           [&] { device.done(event); },
                                           [&] { device.synchronize(event, {}); },
                                           [&] { device.zero(memory, 4, stream); },
                                           [&] { device.copy(memory, memory, 4, CopyKind::on_device, stream); },
                                           [&] { device.run(*plan, tensors, memory, stream); },
                                           [&] { device.time([](Stream) {}, 1); },
                                           [&] { device.begin_capture(stream); }};
    for (const auto& call : calls) try {
        call();
        ADD_FAILURE() << "call " << &call - calls << " went through";
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("the device is unusable since an earlier error"), std::string::npos);
        EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
      }
    device.release(memory);
  };
  {
    HostDevice device;
    void* memory = device.allocate(100, "small");
    const Event event = device.make_event();
    EXPECT_THROW(device.zero(memory, 101, device.compute_stream()), Error);
    every_call_fails(device, memory, event, "illegal address");
  }
  {
    // A kernel that fails is noticed when it runs.
    HostDevice device({.order = {Kind::latest}});
    void* memory = device.allocate(1024, "memory");
    const Event event = device.make_event();
    AddArguments add{};
    add.a = add.b = add.y = memory;
    add.count = 8;
    KernelLaunch launch = launch_of(Type::fp32, add);
    launch.shape.block = 33;  // not a whole number of warps
    device.launch(launch, device.compute_stream());
    device.record(event, device.compute_stream());
    EXPECT_THROW(device.synchronize(event, {}), Error);
    every_call_fails(device, memory, event, "not whole warps");
  }
}

TEST(HostDevice, PageLockedMemoryComesWithoutZeros) {
  HostDevice device;
  auto* const memory = static_cast<float*>(device.allocate_host(40));
  EXPECT_TRUE(std::isnan(memory[0]) && std::isnan(memory[9]));
  device.release_host(memory);
}

// By the model, a command takes 3 us plus the longer of its bytes at 4 TB/s and its operations at 500 TFlop/s. time()
// also runs the work.
TEST(HostDevice, TimesByItsModelWhereItIsAsked) {
  HostDevice untimed;
  EXPECT_EQ(untimed.time([](Stream) { FAIL() << "nothing to run"; }, 3), -1);
  HostDevice device({.order = {Kind::latest}, .isolate_commands = true, .times = true});
  constexpr std::int64_t bytes = 4'000'000;
  auto* const memory = static_cast<std::byte*>(device.allocate(bytes, "memory"));
  device.zero(memory, bytes, device.compute_stream());
  const double seconds = device.time(
      [&](Stream stream) {
        device.zero(memory, bytes, stream);
        device.copy(memory, memory + bytes / 2, bytes / 2, CopyKind::on_device, stream);
      },
      5);
  EXPECT_NEAR(seconds, 2 * (3e-6 + 1e-6), 1e-12);
  const DnnOperation op = {.kind = DnnKind::matmul, .n = 300, .k = 300, .m = 300};
  const DnnPlan* plan = device.plan(op);
  const std::int64_t matrix = 300 * 300 * 4;
  const std::vector<void*> tensors = {memory, memory + matrix, memory + 2 * matrix};
  const double of_product =
      device.time([&](Stream stream) { device.run(*plan, tensors, memory + 3 * matrix, stream); }, 1);
  EXPECT_NEAR(of_product, 3e-6 + std::max(3.0 * matrix / 4e12, 2.0 * 300 * 300 * 300 / 5e14), 1e-12);
  device.begin_capture(device.compute_stream());
  EXPECT_THROW(device.time([](Stream) {}, 1), Error);
  device.end_capture(device.compute_stream());
}

TEST(HostDevice, AnIsolatedCommandSeesOnlyItsRegionsAndWritesOnlyThere) {
  HostDevice device({.isolate_commands = true});
  auto* memory = static_cast<float*>(device.allocate(12, "three"));
  const Stream stream = device.compute_stream();
  device.give_work(stream, "one", {{memory, 4, true}}, [=] { memory[0] = std::isnan(memory[1]) ? 5.0f : 6.0f; });
  EXPECT_EQ(memory[0], 5.0f) << "a command must not see memory that it does not name";
  EXPECT_EQ(memory[1], 0.0f) << "the memory after it is unchanged";
  EXPECT_THROW(device.give_work(stream, "wrong", {{memory, 4, true}}, [=] { memory[2] = 1; }), Error);
  EXPECT_THROW(device.give_work(stream, "reader", {{memory, 4, false}}, [=] { memory[0] = 1; }), Error);
}

TEST(HostDevice, RefusedOperationsSayWhy) {
  HostDevice device({.refuse_dnn = [](const DnnOperation& op) {
    return op.epilogue == Epilogue::sums ? std::string("no engine") : std::string();
  }});
  DnnOperation op = {.n = 1, .c = 1, .h = 1, .w = 1, .k = 1, .r = 1};
  EXPECT_NE(device.plan(op), nullptr);
  op.epilogue = Epilogue::sums;
  std::string why;
  EXPECT_EQ(device.plan(op, &why), nullptr);
  EXPECT_EQ(why, "no engine");
}

}  // namespace
}  // namespace ringtrain::cuda
