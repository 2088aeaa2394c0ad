// Tests the schedule of GPU programs with commands that only report that they were issued.
#include <gtest/gtest.h>

#include "backend/cuda/program/schedule.h"
#include "base/error.h"
#include "base/random.h"
#include "tests/emulation/host_device.h"

namespace ringtrain::cuda {
namespace {

ParameterTable table_of(const std::vector<std::int64_t>& counts) {
  ParameterTable table;
  for (const std::int64_t count : counts)
    table.append({.name = cat("p", table.all().size()), .shape = {count}, .kind = ParameterKind::weight});
  return table;
}

struct Recorded {
  Schedule schedule;
  std::vector<std::string> issued;
  std::vector<bool> accumulated;

  void add(const std::string& name, std::vector<Access> uses = {}, std::vector<std::string> finishes = {},
           bool replayed = true) {
    Command command{.name = name, .uses = std::move(uses), .issue = {}, .finishes = std::move(finishes)};
    command.replayed = replayed;
    command.issue = [this, name](Device&, Stream, bool accumulate) {
      issued.push_back(name);
      accumulated.push_back(accumulate);
    };
    schedule.add(std::move(command));
  }
  std::vector<std::int64_t> marks(Device& device, bool accumulate = false, bool graphs = false) {
    std::vector<std::int64_t> result;
    const BackwardHooks hooks{[&](std::int64_t mark) { result.push_back(mark); }, {}};
    schedule.run(device, Schedule::Part::backward, accumulate, graphs, &hooks);
    return result;
  }
};

bool overlap(const ArenaPlan::Item& a, const ArenaPlan::Item& b) {
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

TEST(CudaSchedule, BuffersShareMemoryUnlessTheirFirstAndLastUsesInterleave) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    auto draw = [&, n = std::uint64_t{0}](std::int64_t below) mutable {
      return static_cast<std::int64_t>(random_uniform(seed, n++) * static_cast<double>(below));
    };
    Recorded r;
    constexpr int buffers = 12, commands = 30;
    std::vector<int> first(buffers, -1), last(buffers, -1);
    std::vector<Storage> storages;
    for (int b = 0; b < buffers; ++b) storages.push_back(r.schedule.buffer(cat(b), 1 + draw(2000)));
    for (int c = 0; c < commands; ++c) {
      std::vector<Access> uses;
      for (int b = 0; b < buffers; ++b)
        if (draw(6) == 0) {
          uses.push_back({storages[static_cast<std::size_t>(b)], true});
          if (first[static_cast<std::size_t>(b)] < 0) first[static_cast<std::size_t>(b)] = c;
          last[static_cast<std::size_t>(b)] = c;
        }
      r.add(cat("c", c), uses);
    }
    const Storage kept = r.schedule.lasting("kept", 300);
    r.schedule.plan(ParameterTable(), 0);
    std::int64_t total = 0;
    for (const ArenaPlan::Item& a : r.schedule.arena().items()) {
      EXPECT_EQ(a.offset % 256, 0) << a.what;
      total += a.bytes;
      if (a.what == "kept") continue;
      EXPECT_EQ(a.first, first[static_cast<std::size_t>(std::stoi(a.what))]);
      EXPECT_EQ(a.last, last[static_cast<std::size_t>(std::stoi(a.what))]);
    }
    for (const ArenaPlan::Item& a : r.schedule.arena().items())
      for (const ArenaPlan::Item& b : r.schedule.arena().items())
        if (&a != &b && overlap(a, b)) {
          EXPECT_TRUE(a.last < b.first || b.last < a.first) << a.what << " and " << b.what;
        }
    EXPECT_LE(r.schedule.arena().bytes(), total);
    char base = 0;
    r.schedule.bind(&base);
    EXPECT_NE(r.schedule.at(kept), nullptr);
  }
}

TEST(CudaSchedule, TheWorkspaceIsTheLargestThatWasAskedForAndNobodyElses) {
  Recorded r;
  const Storage a = r.schedule.buffer("a", 100), b = r.schedule.buffer("b", 100);
  r.schedule.workspace(1000);
  r.schedule.workspace(400);
  r.add("first", {{a, true}, {r.schedule.workspace(), true}});
  r.add("second", {{b, true}});
  r.schedule.plan(ParameterTable(), 0);
  EXPECT_EQ(r.schedule.bytes(r.schedule.workspace()), 1000);
  EXPECT_EQ(r.schedule.arena().bytes(), 1024 + 256) << "a and b share, the workspace stays";
}

TEST(CudaSchedule, ABufferThatIsReadBeforeItIsWrittenIsAnError) {
  Recorded r;
  const Storage a = r.schedule.buffer("a", 100);
  r.add("reader", {{a}});
  EXPECT_THROW(r.schedule.plan(ParameterTable(), 0), Error);
}

TEST(CudaSchedule, WhatIsFilledBetweenPassesHasToLast) {
  Recorded r;
  const Storage a = r.schedule.buffer("a", 100);
  r.schedule.begin_backward();
  r.schedule.begin_weights();
  r.add("copy", {{a, true}});
  EXPECT_THROW(r.schedule.plan(ParameterTable(), 0), Error);
}

TEST(CudaSchedule, TheWatermarkWaitsForEveryTensorBeforeIt) {
  HostDevice device;
  const ParameterTable table = table_of({10, 100, 64, 1});  // offsets 0 64 192 256, size 320
  Recorded r;
  r.add("forward");
  r.schedule.begin_backward();
  r.add("b1", {}, {"p1"});
  r.add("b0", {}, {"p0"});
  r.add("b3", {}, {"p3"});
  r.add("b2", {}, {"p2"});
  r.add("tail");
  r.schedule.begin_weights();
  r.schedule.plan(table, 1);
  std::vector<std::string> reports;
  const BackwardHooks hooks{[&](std::int64_t mark) { reports.push_back(cat(r.issued.back(), " ", mark)); }, {}};
  r.schedule.run(device, Schedule::Part::backward, false, false, &hooks);
  EXPECT_EQ(reports, (std::vector<std::string>{"b0 192", "b2 320"})) << "p0 and p1, then all";
  EXPECT_EQ(r.issued, (std::vector<std::string>{"b1", "b0", "b3", "b2", "tail"}));
}

TEST(CudaSchedule, SegmentsEndWhereAMultipleOfTheirSizeBecomesFinal) {
  HostDevice device;
  const ParameterTable table = table_of({64, 64, 64, 64, 64, 64});
  for (const auto& [segment, expected] :
       std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>>{{0, {384}},
                                                                       {64, {64, 128, 192, 256, 320, 384}},
                                                                       {128, {128, 256, 384}},
                                                                       {150, {192, 320, 384}},
                                                                       {1000, {384}}}) {
    Recorded r;
    r.schedule.begin_backward();
    for (std::size_t i = 0; i < 6; ++i) r.add(cat("b", i), {}, {cat("p", i)});
    r.schedule.begin_weights();
    r.schedule.plan(table, segment);
    EXPECT_EQ(r.marks(device), expected) << segment;
  }
}

TEST(CudaSchedule, GraphsAreReplayedFromTheThirdRunOfAVariantOnAndPlainCommandsNever) {
  HostDevice device;
  Recorded r;
  r.schedule.begin_backward();
  r.add("input", {}, {}, false);
  r.add("work", {}, {"p0"});
  r.schedule.begin_weights();
  r.schedule.plan(table_of({64}), 0);
  const auto count = [&](const std::string& name) { return std::count(r.issued.begin(), r.issued.end(), name); };
  for (int run = 1; run <= 5; ++run) {
    EXPECT_EQ(r.marks(device, false, true), std::vector<std::int64_t>{64});
    EXPECT_EQ(count("input"), run);
    EXPECT_EQ(count("work"), std::min(run, 2)) << "plain, captured, then replayed";
  }
  r.marks(device, true, true);
  EXPECT_EQ(count("work"), 3) << "another variant is another graph";
  EXPECT_TRUE(r.accumulated.back());
  r.schedule.forget_captured(Schedule::Part::backward);
  r.marks(device, false, true);
  EXPECT_EQ(count("work"), 4) << "an address has changed";
  r.marks(device, false, false);
  EXPECT_EQ(count("work"), 5) << "without graphs";
}

// While a capture is open, the stream would take no other work, and the device would look lost.
TEST(CudaSchedule, ACommandThatFailsInACaptureEndsTheCapture) {
  HostDevice device;
  Recorded r;
  bool fails = false;
  r.schedule.begin_backward();
  r.schedule.add({.name = "work",
                  .uses = {},
                  .issue =
                      [&](Device&, Stream, bool) {
                        if (fails) throw Error("no such kernel");
                      },
                  .finishes = {"p0"}});
  r.schedule.begin_weights();
  r.schedule.plan(table_of({64}), 0);
  r.marks(device, false, true);
  fails = true;
  EXPECT_THROW(r.marks(device, false, true), Error) << "the second run is captured";
  fails = false;
  device.begin_capture(device.compute_stream());
  device.end_capture(device.compute_stream());
  EXPECT_EQ(r.marks(device, false, true), std::vector<std::int64_t>{64});
}

TEST(CudaSchedule, ACommandsTrafficIsWhatItUsesUnlessItSaysOtherwise) {
  Recorded r;
  const Storage a = r.schedule.buffer("a", 100), b = r.schedule.buffer("b", 30);
  r.schedule.workspace(1000);
  r.add("both", {{a, true}, {b, true}, {r.schedule.workspace(), true}});
  r.add("in place", {{a}, {a, true}});
  r.schedule.add({.name = "says so", .uses = {{a}}, .issue = {}, .bytes = 7});
  r.schedule.plan(ParameterTable(), 0);
  EXPECT_EQ(r.schedule.commands()[0].bytes, 130);
  EXPECT_EQ(r.schedule.commands()[1].bytes, 200);
  EXPECT_EQ(r.schedule.commands()[2].bytes, 7);
}

TEST(CudaSchedule, CommunicationIsPolledOftenWhileCommandsAreIssued) {
  HostDevice device;
  Recorded r;
  r.schedule.begin_backward();
  for (int i = 0; i < 20; ++i) r.add(cat("b", i));
  r.schedule.begin_weights();
  r.schedule.plan(ParameterTable(), 0);
  int polls = 0;
  const BackwardHooks hooks{{}, [&] { ++polls; }};
  r.schedule.run(device, Schedule::Part::backward, false, false, &hooks);
  EXPECT_GE(polls, 20);
}

}  // namespace
}  // namespace ringtrain::cuda
