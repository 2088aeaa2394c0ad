// Tests the table of fusions with a device that only answers questions. These tests need no CUDA.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <vector>

#include "backend/cuda/program/fusion.h"
#include "base/error.h"
#include "tests/unit/with_folder.h"

namespace ringtrain::cuda {
namespace {

struct Plan : DnnPlan {
  const DnnOperation& operation() const override { return described; }
  std::int64_t workspace_bytes() const override { return 0; }
  std::string engine() const override { return "engine"; }
  DnnOperation described;
};

// Has a plan for every operation that is not refused. A trial adds its cost to `clock`, and so does each plan that is
// prepared.
class AnsweringDevice : public Device {
 public:
  std::set<std::string> refused;  // keys of operations
  bool can_time = false;
  double clock = 0;
  int trials = 0;
  std::map<std::string, double> tuning;  // the seconds that timing an operation's plans takes, by key
  std::vector<std::string> tuned;        // keys in the order of the calls
  std::vector<std::string> prepared;
  int prepared_of_each = 0;
  double building = 0;  // seconds that preparing one operation takes
  std::string lost;     // the error that made the device unusable

  const DeviceFacts& facts() const override { return facts_; }
  const DnnPlan* plan(const DnnOperation& operation, std::string* why) override {
    const bool found = refused.count(operation.key()) == 0;
    if (why != nullptr) *why = found ? "" : "no engine\tsupports\nit";
    return found ? &plan_ : nullptr;
  }
  void prepare(std::span<const DnnOperation> operations, int most, const std::function<bool()>& stop) override {
    prepared_of_each = most;
    for (const DnnOperation& operation : operations) {
      if (std::ranges::find(prepared, operation.key()) != prepared.end()) continue;
      if (stop && stop()) return;
      prepared.push_back(operation.key());
      clock += building;
    }
  }
  std::string why_unusable() override { return lost; }
  double tune(const DnnOperation& operation, int most) override {
    EXPECT_GE(most, 4);
    tuned.push_back(operation.key());
    const auto found = tuning.find(operation.key());
    return found == tuning.end() ? 0 : found->second;
  }
  double time(const std::function<void(Stream)>& work, int) override {
    if (!can_time) return -1;
    const double before = clock;
    work({});
    trials += clock > before;  // asking whether the device can time is no trial
    return clock - before;
  }

  const RnnPlan* plan(const RnnOperation&, std::string*) override { return nullptr; }
  void* allocate(std::int64_t, const std::string&) override { return nullptr; }
  void release(void*) override {}
  void* allocate_host(std::int64_t) override { return nullptr; }
  void release_host(void*) override {}
  void pin(void*, std::int64_t) override {}
  void unpin(void*) override {}
  std::int64_t allocated_bytes() const override { return 0; }
  Stream compute_stream() override { return {}; }
  Stream make_stream(bool) override { return {}; }
  Event make_event() override { return {}; }
  Event make_timed_event() override { return {}; }
  void record(Event, Stream) override {}
  void wait(Stream, Event) override {}
  bool done(Event) override { return true; }
  double seconds_between(Event, Event) override { return 0; }
  void synchronize(Event, const std::function<void()>&) override {}
  void copy(void*, const void*, std::int64_t, CopyKind, Stream) override {}
  void zero(void*, std::int64_t, Stream) override {}
  void launch(const KernelLaunch&, Stream) override {}
  void run(const DnnPlan&, std::span<void* const>, void*, Stream) override {}
  void run_forward(const RnnPlan&, const RnnForward&, Stream) override {}
  void run_backward(const RnnPlan&, const RnnBackward&, Stream) override {}
  void begin_capture(Stream) override {}
  CapturedGraph end_capture(Stream) override { return {}; }
  void launch(CapturedGraph, Stream) override {}

  DeviceFacts facts_ = {.name = "GPU", .uuid = "", .cuda_version = "13.0", .cudnn_version = "9.19.0"};

 private:
  Plan plan_;
};

DnnOperation operation(const std::string& extra) {
  return parse_operation("conv bf16 n32 c64 56x56 k64 r3 s1 p1" + extra);
}

// Returns a site with three ways. The first has the least memory traffic, and the second is the fastest.
FusionSite site(AnsweringDevice& device, const std::string& name = "layer1.0.conv2 forward") {
  const auto costs = [&device](double seconds) {
    return [&device, seconds](Device&) -> std::vector<TrialPart> {
      return {{"", [&device, seconds](Device&, Stream) { device.clock += seconds; }}};
    };
  };
  FusionSite s;
  s.name = name;
  s.ways.push_back({.name = "all in one",
                    .operations = {operation(" +scale_bias_relu +sums")},
                    .bytes = 100,
                    .trial = costs(0.003)});
  s.ways.push_back({.name = "sums", .operations = {operation(" +sums")}, .bytes = 200, .trial = costs(0.001)});
  s.ways.push_back({.name = "separate", .operations = {operation("")}, .bytes = 400, .trial = costs(0.002)});
  return s;
}

TEST(CudaFusionTable, WithoutTimesTheFewestBytesThatFindPlansWin) {
  AnsweringDevice device;
  const FusionSite s = site(device);
  EXPECT_EQ(FusionTable().choose(device, s), 0u);
  EXPECT_EQ(device.prepared_of_each, 1);  // a second plan would never be timed
  device.refused.insert(operation(" +scale_bias_relu +sums").key());
  FusionTable table;
  EXPECT_EQ(table.choose(device, s), 1u);
  ASSERT_EQ(table.choices().size(), 1u);
  const FusionChoice& choice = table.choices().front();
  EXPECT_EQ(choice.site, s.name);
  EXPECT_EQ(choice.way, "sums");
  EXPECT_EQ(choice.seconds, 0);
  EXPECT_NE(choice.refused.find("all in one: no plan for conv bf16"), std::string::npos);
  EXPECT_NE(choice.refused.find("no engine supports it"), std::string::npos);
}

TEST(CudaFusionTable, WithTimesTheFastestWins) {
  AnsweringDevice device;
  device.can_time = true;
  FusionTable table;
  EXPECT_EQ(table.choose(device, site(device)), 1u);
  EXPECT_DOUBLE_EQ(table.choices().front().seconds, 0.001);
  EXPECT_EQ(device.trials, 3);
}

TEST(CudaFusionTable, NothingIsTimedBeyondTheLimit) {
  AnsweringDevice device;
  device.can_time = true;
  FusionTable table(0);
  EXPECT_EQ(table.choose(device, site(device)), 0u);
  EXPECT_EQ(device.trials, 0);
}

TEST(CudaFusionTable, EqualSitesShareOneChoice) {
  AnsweringDevice device;
  device.can_time = true;
  FusionTable table;
  table.choose(device, site(device));
  const int trials = device.trials;
  EXPECT_EQ(table.choose(device, site(device, "layer1.1.conv2 forward")), 1u);
  EXPECT_EQ(device.trials, trials);
  EXPECT_EQ(table.choices().size(), 2u);
  EXPECT_EQ(table.choices().back().site, "layer1.1.conv2 forward");
}

TEST(CudaFusionTable, ALoadedTableChoosesTheSameWithoutTiming) {
  AnsweringDevice device;
  device.can_time = true;
  device.refused.insert(operation("").key());
  FusionTable first;
  first.choose(device, site(device));
  FusionTable second;
  second.load(first.text());
  EXPECT_EQ(second.text(), first.text());
  const int trials = device.trials;
  EXPECT_EQ(second.choose(device, site(device)), 1u);
  EXPECT_EQ(device.trials, trials);
  EXPECT_EQ(second.choices().front().refused, first.choices().front().refused);
}

TEST(CudaFusionTable, AChoiceOfAnotherDeviceOrCudnnIsNotTaken) {
  AnsweringDevice device;
  device.can_time = true;
  FusionTable first;
  first.choose(device, site(device));
  for (std::string DeviceFacts::*fact : {&DeviceFacts::name, &DeviceFacts::cudnn_version}) {
    AnsweringDevice other;
    other.facts_.*fact = "another";
    FusionTable second;
    second.load(first.text());
    EXPECT_EQ(second.choose(other, site(other)), 0u);  // chosen by its bytes
  }
}

TEST(CudaFusionTable, AKnownChoiceWhosePlanIsGoneIsMadeAgain) {
  AnsweringDevice device;
  device.can_time = true;
  FusionTable first;
  EXPECT_EQ(first.choose(device, site(device)), 1u);
  FusionTable second;
  second.load(first.text());
  device.refused.insert(operation(" +sums").key());
  EXPECT_EQ(second.choose(device, site(device)), 2u);
}

TEST(CudaFusionTable, ASiteThatCannotBeComputedSaysWhy) {
  AnsweringDevice device;
  for (const char* extra : {"", " +sums", " +scale_bias_relu +sums"}) device.refused.insert(operation(extra).key());
  try {
    FusionTable().choose(device, site(device));
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("layer1.0.conv2 forward"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("separate: no plan"), std::string::npos);
  }
}

using KeptFusions = WithFolder;

TEST_F(KeptFusions, OneSearchServesLaterRuns) {
  AnsweringDevice device;
  device.can_time = true;
  FusionTable first;
  load_kept_fusions(path("plans"), first);  // there is no file yet
  first.choose(device, site(device));
  keep_fusions(path("plans"), first);
  const int trials = device.trials;
  FusionTable second(0), third;
  for (FusionTable* table : {&second, &third}) {
    load_kept_fusions(path("plans"), *table);
    EXPECT_EQ(table->text(), "");  // holds only choices in use, like a checkpoint
    EXPECT_EQ(table->choose(device, site(device)), 1u);
    EXPECT_EQ(table->text(), first.text());
  }
  EXPECT_EQ(device.trials, trials);
}

// A first search may have timed one plan of each operation. A later one looks further among the chosen way's plans.
TEST_F(KeptFusions, PlansOfAKeptChoiceAreTimedOnceInALaterRunButNotInAResumedOne) {
  AnsweringDevice device;
  device.can_time = true;
  FusionTable first;
  first.choose(device, site(device));
  keep_fusions(path("plans"), first);
  const auto tuned_with = [&](FusionTable& table) {
    device.tuned.clear();
    table.choose(device, site(device));
    table.choose(device, site(device));
    return device.tuned;
  };
  FusionTable later;
  load_kept_fusions(path("plans"), later);
  const std::size_t chosen = later.choose(device, site(device));
  FusionTable again;
  load_kept_fusions(path("plans"), again);
  std::vector<std::string> operations;
  const FusionSite tuned_site = site(device);
  for (const DnnOperation& o : tuned_site.ways[chosen].operations) operations.push_back(o.key());
  EXPECT_EQ(tuned_with(again), operations);
  FusionTable resumed;
  resumed.load(first.text());
  EXPECT_TRUE(tuned_with(resumed).empty());
  FusionTable untimed(0);
  load_kept_fusions(path("plans"), untimed);
  EXPECT_TRUE(tuned_with(untimed).empty());
}

TEST_F(KeptFusions, AResumedRunsOwnChoiceComesFirst) {
  AnsweringDevice device;
  FusionTable by_bytes;
  EXPECT_EQ(by_bytes.choose(device, site(device)), 0u);
  device.can_time = true;
  FusionTable timed;
  EXPECT_EQ(timed.choose(device, site(device)), 1u);
  keep_fusions(path("plans"), timed);
  FusionTable resumed;
  load_kept_fusions(path("plans"), resumed);
  resumed.load(by_bytes.text());
  EXPECT_EQ(resumed.choose(device, site(device)), 0u);
}

TEST_F(KeptFusions, SearchesAddUpAndGuessesAreNotKept) {
  AnsweringDevice device;
  const auto other = [&] {
    FusionSite s = site(device, "another");
    for (FusionSite::Way& way : s.ways) way.bytes += 1;
    return s;
  };
  FusionTable guessed;
  guessed.choose(device, site(device));
  keep_fusions(path("plans"), guessed);
  EXPECT_FALSE(std::filesystem::exists(path("plans/fusions")));
  device.can_time = true;
  FusionTable first, second, both(0);
  first.choose(device, site(device));
  keep_fusions(path("plans"), first);
  second.choose(device, other());
  keep_fusions(path("plans"), second);
  load_kept_fusions(path("plans"), both);
  EXPECT_EQ(both.choose(device, site(device)), 1u);
  EXPECT_EQ(both.choose(device, other()), 1u);
}

TEST_F(KeptFusions, AFileThatCannotBeReplacedIsAWarningAndLeavesNothingBehind) {
  std::filesystem::create_directories(path("plans/fusions/in the way"));
  AnsweringDevice device;
  device.can_time = true;
  FusionTable table;
  table.choose(device, site(device));
  testing::internal::CaptureStderr();
  keep_fusions(path("plans"), table);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("fusions cannot be written"), std::string::npos);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path("plans")), {}), 1);
}

TEST_F(KeptFusions, ADamagedFileCountsAsNone) {
  std::ofstream(path("fusions")) << "key\tway\n";
  AnsweringDevice device;
  FusionTable table;
  EXPECT_NO_THROW(load_kept_fusions(folder_.string(), table));
  EXPECT_EQ(table.choose(device, site(device)), 0u);
}

// A convolution with `k` output channels. The fused way moves more bytes than the plain one.
FusionSite site_of_channels(AnsweringDevice& device, std::int64_t k, double fused_seconds, double plain_seconds) {
  DnnOperation plain = operation("");
  plain.k = k;
  DnnOperation fused = plain;
  fused.epilogue = Epilogue::sums;
  const auto costs = [&device](double seconds) {
    return [&device, seconds](Device&) -> std::vector<TrialPart> {
      return {{"", [&device, seconds](Device&, Stream) { device.clock += seconds; }}};
    };
  };
  const auto elements = static_cast<double>(k) * 1e6;
  return {
      .name = cat("conv of ", k),
      .ways = {
          {.name = "fused", .operations = {fused}, .bytes = 3 * elements, .flops = 0, .trial = costs(fused_seconds)},
          {.name = "plain", .operations = {plain}, .bytes = 2 * elements, .flops = 0, .trial = costs(plain_seconds)}}};
}

// By bytes, "plain" is better at every site. By time, "fused" is better.
std::vector<FusionSite> three_sizes(AnsweringDevice& device) {
  return {site_of_channels(device, 64, 0.001, 0.002), site_of_channels(device, 512, 0.001, 0.002),
          site_of_channels(device, 128, 0.001, 0.002)};
}

// Trials of a site cost 6 x 0.001 s and 6 x 0.002 s of the device's time. What was begun is finished, so a budget that
// ends during the last trial is as good as one that ends after it.
TEST(CudaFusionSearch, ASmallBudgetGoesToWhatTakesLongestNotToWhatComesFirst) {
  const std::vector<std::size_t> expected[] = {{1, 1, 1}, {1, 0, 1}, {1, 0, 0}, {0, 0, 0}};
  for (int reached = 0; reached <= 3; ++reached)
    for (const double budget : {0.018 * reached, 0.018 * reached - 0.001}) {
      AnsweringDevice device;
      device.can_time = true;
      FusionTable table(budget);
      EXPECT_EQ(table.choose(device, three_sizes(device)), expected[reached]) << reached << " sites are reached";
      EXPECT_EQ(device.trials, 2 * reached);
    }
}

TEST(CudaFusionSearch, ASiteCountsAsOftenAsItIsUsed) {
  AnsweringDevice device;
  device.can_time = true;
  std::vector<FusionSite> sites = three_sizes(device);
  for (int i = 0; i < 20; ++i) sites.push_back(sites.front());
  FusionTable table(0.018);
  const std::vector<std::size_t> ways = table.choose(device, sites);
  EXPECT_EQ(ways[0], 0u);
  EXPECT_EQ(ways[1], 1u);
  EXPECT_EQ(ways[2], 1u);
  for (std::size_t i = 3; i < ways.size(); ++i) EXPECT_EQ(ways[i], 0u);
  EXPECT_EQ(device.trials, 2);
}

// Building plans costs nothing in this test. Only the results of tune() and time() count.
TEST(CudaFusionSearch, PlansAreTimedBeforeTheWaysAndTheBudgetCountsBoth) {
  AnsweringDevice device;
  device.can_time = true;
  const std::vector<FusionSite> sites = three_sizes(device);
  const auto key = [&](std::size_t site, std::size_t way) { return sites[site].ways[way].operations[0].key(); };
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t way = 0; way < 2; ++way) device.tuning[key(i, way)] = 0.001;
  FusionTable table(0.020);
  EXPECT_EQ(table.choose(device, sites), (std::vector<std::size_t>{1, 0, 1}));
  EXPECT_EQ(device.tuned, (std::vector<std::string>{key(1, 1), key(1, 0)}));
  EXPECT_EQ(device.prepared.size(), 6u);  // all are built before any is timed
  EXPECT_EQ(device.prepared_of_each, usual_plan_candidates);
}

TEST(CudaFusionSearch, OperationsAtNoChoiceAreTunedOnceAndKeptInTheTable) {
  AnsweringDevice device;
  device.can_time = true;
  const FusionSite plain = only_way("dense", {operation("")});
  FusionTable first;
  EXPECT_EQ(first.choose(device, plain), 0u);
  EXPECT_EQ(device.tuned, std::vector<std::string>{operation("").key()});
  EXPECT_EQ(device.trials, 0);
  EXPECT_TRUE(first.choices().empty());
  FusionTable second;
  second.load(first.text());
  EXPECT_EQ(second.choose(device, plain), 0u);
  EXPECT_EQ(device.tuned.size(), 1u);
}

TEST(CudaFusionSearch, EqualPartsAreTimedOnceAndAWayTakesTheSumOfItsParts) {
  AnsweringDevice device;
  device.can_time = true;
  const auto part = [&device](const std::string& what, double seconds) {
    return TrialPart{what, [&device, seconds](Device&, Stream) { device.clock += seconds; }};
  };
  FusionSite s = site(device);
  s.ways[0].trial = [&](Device&) { return std::vector{part("weight gradient", 0.002), part("all in one", 0.003)}; };
  s.ways[1].trial = [&](Device&) { return std::vector{part("weight gradient", 0.002), part("sums", 0.004)}; };
  s.ways[2].trial = [&](Device&) {
    return std::vector{part("weight gradient", 0.002), part("plain", 0.001), part("norm's sums", 0.0015)};
  };
  FusionTable table;
  EXPECT_EQ(table.choose(device, s), 2u);
  EXPECT_EQ(device.trials, 5);
  EXPECT_NEAR(table.choices().front().seconds, 0.0045, 1e-12);
}

TEST(CudaFusionSearch, EqualRunsChooseEquallyAndAResumedOneTakesTheSame) {
  for (const double limit : {0.0, 0.009, 0.018, 0.030, 60.0}) {
    AnsweringDevice device, again, resumed;
    device.can_time = again.can_time = resumed.can_time = true;
    FusionTable first(limit), second(limit), third;
    const std::vector<std::size_t> ways = first.choose(device, three_sizes(device));
    EXPECT_EQ(second.choose(again, three_sizes(again)), ways);
    EXPECT_EQ(second.text(), first.text());
    third.load(first.text());
    EXPECT_EQ(third.choose(resumed, three_sizes(resumed)), ways);
    EXPECT_EQ(resumed.trials, 0);
    EXPECT_TRUE(resumed.tuned.empty());
    EXPECT_EQ(third.text(), first.text());
  }
}

// Returns parts whose run throws. When `lost` is not empty, the device is unusable from then on.
std::function<std::vector<TrialPart>(Device&)> throws(AnsweringDevice& device, const std::string& lost = "") {
  return [&device, lost](Device&) -> std::vector<TrialPart> {
    return {{"", [&device, lost](Device&, Stream) {
               device.lost = lost;
               throw Error("the launch failed");
             }}};
  };
}

TEST(CudaFusionErrors, AWayThatThrowsIsRefusedAndTheOthersAreTimed) {
  AnsweringDevice device;
  device.can_time = true;
  FusionSite s = site(device);
  s.ways[1].trial = throws(device);  // it would be the fastest
  FusionTable table;
  EXPECT_EQ(table.choose(device, s), 2u);
  EXPECT_DOUBLE_EQ(table.choices().front().seconds, 0.002);
  EXPECT_EQ(table.choices().front().refused, "sums: does not run: the launch failed");
  EXPECT_EQ(device.trials, 2);

  s.ways[0].trial = s.ways[1].trial;                                       // the guess
  s.ways[2].trial = [](Device&) -> std::vector<TrialPart> { return {}; };  // no memory to time it
  FusionTable another;
  EXPECT_EQ(another.choose(device, s), 2u);

  s.ways[2].trial = s.ways[1].trial;
  const std::string why = message_of([&] { FusionTable().choose(device, s); });
  for (const char* way : {"all in one", "sums", "separate"})
    expect_contains(why, cat(way, ": does not run: the launch failed"));
}

TEST(CudaFusionErrors, TuningThatThrowsIsRecordedAndItsWayIsTimed) {
  class Untunable : public AnsweringDevice {
    double tune(const DnnOperation&, int) override { throw Error("no memory" + std::string(5000, '.')); }
  } device;
  device.can_time = true;
  FusionTable table;
  EXPECT_EQ(table.choose(device, site(device)), 1u);
  expect_contains(table.choices().front().refused, operation("").key() + " does not run: no memory");
  EXPECT_LT(table.choices().front().refused.size(), 3u * 500);
}

// The next process has a working device. It times the other ways and does not try "sums", which lost the device.
void expect_others_timed_after(const std::string& kept, const std::string& error) {
  AnsweringDevice restarted;
  restarted.can_time = true;
  FusionTable next;
  next.load_kept(kept);
  EXPECT_EQ(next.choose(restarted, site(restarted)), 2u);
  EXPECT_EQ(restarted.trials, 2);
  expect_contains(next.choices().front().refused, "sums: the device was lost: " + error);
}

TEST(CudaFusionErrors, ALostDeviceEndsTheSearchWithItsError) {
  AnsweringDevice device;
  device.can_time = true;
  FusionSite s = site(device);
  s.ways[1].trial = throws(device, "an illegal address");
  FusionTable table;
  std::string kept;
  table.after_each_site([&](const FusionTable& t) { kept = t.text(); });
  expect_contains(message_of([&] { table.choose(device, s); }), "layer1.0.conv2 forward, sums: the launch failed");
  EXPECT_EQ(device.trials, 1);
  expect_others_timed_after(kept, "the launch failed");
}

TEST(CudaFusionErrors, TuningThatLosesTheDeviceIsNotRepeated) {
  class Losing : public AnsweringDevice {
    double tune(const DnnOperation& o, int most) override {
      if (o.key() != operation(" +sums").key()) return AnsweringDevice::tune(o, most);
      lost = "an illegal address";
      throw Error("an illegal address");
    }
  } device;
  device.can_time = true;
  FusionTable table;
  std::string kept;
  table.after_each_site([&](const FusionTable& t) { kept = t.text(); });
  expect_contains(message_of([&] { table.choose(device, site(device)); }), "layer1.0.conv2 forward, sums: an illegal");
  expect_others_timed_after(kept, "an illegal address");
}

// The proof fails here, because the device has no plan for the few samples of the proof.
TEST(CudaFusionErrors, AWayThatWantsProofRunsOnlyAfterIt) {
  AnsweringDevice device;
  device.can_time = true;
  FusionSite s = site(device);
  DnnOperation fast = operation(" +sums"), few = fast;
  fast.engine = few.engine = Engine::hopper;
  few.n = 2;
  device.refused.insert(few.key());
  int runs = 0;
  s.ways.insert(s.ways.begin(), {.name = "unproved", .operations = {fast}, .bytes = 1, .trial = [&](Device&) {
                                   return std::vector{TrialPart{"", [&](Device&, Stream) { ++runs; }}};
                                 }});
  FusionTable table;
  EXPECT_EQ(table.choose(device, s), 2u);
  EXPECT_EQ(runs, 0);
  expect_contains(table.choices().front().refused, "unproved: no plan for " + few.key());
}

// Also a choice that was kept before the way lost the device is made again.
TEST_F(KeptFusions, AWayThatLostTheDeviceIsRefusedByLaterRuns) {
  AnsweringDevice device;
  device.can_time = true;
  FusionTable first;
  keep_fusions(folder_.string(), first);
  EXPECT_EQ(first.choose(device, site(device)), 1u);
  std::ofstream(folder_ / "fusions", std::ios::app) << [&] {
    const std::string line = first.text();
    return line.substr(0, line.find('\t')) + "\tsums\t-1\tlost\tan illegal address\n";
  }();
  for (int run = 0; run < 2; ++run) {
    FusionTable later;
    load_kept_fusions(folder_.string(), later);
    keep_fusions(folder_.string(), later);
    EXPECT_EQ(later.choose(device, site(device)), 2u) << run;
    expect_contains(later.text(), "sums\t-1\tlost\tan illegal address");
  }
}

TEST_F(KeptFusions, ASearchThatEndsEarlyLeavesTheSitesThatItFinished) {
  AnsweringDevice device;
  device.can_time = true;
  std::vector<FusionSite> sites = three_sizes(device);  // timed in the order 1, 2, 0
  sites[0].ways[0].trial = throws(device, "an illegal address");
  FusionTable table;
  keep_fusions(path("plans"), table);
  EXPECT_THROW(table.choose(device, sites), Error);

  FusionTable later(0);
  load_kept_fusions(path("plans"), later);
  EXPECT_EQ(later.choose(device, three_sizes(device)), (std::vector<std::size_t>{1, 0, 0}));
}

// Building a plan takes a second. Plans may be built in 0.6 of the time.
TEST_F(KeptFusions, WhatTheDeadlineLeavesOutKeepsItsGuessWhosePlansComeFirst) {
  AnsweringDevice device;
  device.can_time = true;
  device.building = 1;
  const std::vector<FusionSite> sites = {site_of_channels(device, 64, 0.5, 1), site_of_channels(device, 512, 0.5, 1),
                                         site_of_channels(device, 128, 0.5, 1)};
  const auto plain = [&](std::size_t i) { return sites[i].ways[1].operations[0].key(); };
  FusionTable table(1000, 5, [&] { return device.clock; });
  keep_fusions(path("plans"), table);
  EXPECT_EQ(table.choose(device, sites), (std::vector<std::size_t>{1, 0, 1}));
  EXPECT_EQ(device.prepared, (std::vector<std::string>{plain(1), plain(2), plain(0)}));
  EXPECT_EQ(device.trials, 3);  // both ways of the first site, and the guess of the second
  const std::string text = table.text();
  EXPECT_EQ(std::ranges::count(text, '\n'), 3);
  FusionTable later(0);
  load_kept_fusions(path("plans"), later);
  later.choose(device, sites);
  EXPECT_EQ(later.choices()[1].seconds, 0.5);
  EXPECT_EQ(later.choices()[2].seconds, 0) << "a site that is timed in part is searched again";

  EXPECT_EQ(table.choose(device, site(device)), 0u) << "the time is that of all calls together";
  EXPECT_EQ(device.trials, 3);
}

TEST(CudaFusionSearch, PlansOfGuessesAreBuiltEvenAfterTheDeadline) {
  AnsweringDevice device;
  device.can_time = true;
  device.building = 1;
  FusionTable table(1000, 2, [&] { return device.clock; });
  EXPECT_EQ(table.choose(device, three_sizes(device)), (std::vector<std::size_t>{1, 1, 1}));
  EXPECT_EQ(device.prepared.size(), 3u);
  EXPECT_EQ(device.prepared_of_each, 1);
  EXPECT_EQ(device.trials, 0);
}

TEST(CudaFusionTable, ALineThatIsNotUnderstoodIsNamed) {
  FusionTable table;
  EXPECT_NO_THROW(table.load("key\tway\t0\tsite\t\n"));
  for (const char* text : {"nonsense\n", "key\tway\tsoon\tsite\t\n", "key\tway\t0\n"}) {
    EXPECT_THROW(table.load(std::string("key\tway\t0\tsite\t\n") + text), Error);
    try {
      table.load(std::string("key\tway\t0\tsite\t\n") + text);
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("line 2"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace ringtrain::cuda
