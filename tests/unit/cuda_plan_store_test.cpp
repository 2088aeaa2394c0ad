// Tests which plan a device chooses for an operation and what it keeps. The plans have only names. These tests need no
// CUDA.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "backend/cuda/device/plan_store.h"
#include "base/hash.h"
#include "tests/emulation/host_device.h"
#include "tests/unit/with_folder.h"

namespace ringtrain::cuda {
namespace {

const DnnOperation wide = parse_operation("conv bf16 n1 c8 4x4 k16 r1 s1 p0");
const DnnOperation deep = parse_operation("wgrad bf16 n1 c8 4x4 k8 r3 s1 p1");
const DnnOperation none = parse_operation("wgrad fp16 n1 c8 4x4 k8 r3 s2 p1 +scale_bias_relu +specialised");

struct NamedPlan : DnnPlan {
  const DnnOperation& operation() const override { return operation_; }
  std::int64_t workspace_bytes() const override { return workspace_; }
  std::string engine() const override { return engine_; }
  DnnOperation operation_;
  std::int64_t workspace_ = 0;
  std::string engine_;
  bool loaded = false;
};

// State that all makers of a test share: the engines that cuDNN would propose, and the requests to it.
struct Proposals {
  std::map<std::string, std::vector<std::string>> engines = {{wide.key(), {"a", "b", "c", "d"}},
                                                             {deep.key(), {"e", "f"}}};
  std::set<std::string> not_written, not_loaded;  // names of engines
  std::mutex mutex;
  std::map<std::string, std::size_t> builds;  // the plans requested, summed over all requests, by key
  std::set<std::thread::id> threads;
};

class NamingMaker : public PlanMaker {
 public:
  explicit NamingMaker(Proposals& proposals) : p_(proposals) {}
  std::vector<std::unique_ptr<DnnPlan>> build(const DnnOperation& operation, std::size_t most,
                                              std::string* why) override {
    const std::lock_guard lock(p_.mutex);
    p_.builds[operation.key()] += most;
    p_.threads.insert(std::this_thread::get_id());
    std::vector<std::unique_ptr<DnnPlan>> plans;
    for (const std::string& engine : p_.engines[operation.key()])
      if (plans.size() < most) plans.push_back(plan(operation, engine, false));
    if (plans.empty() && why != nullptr) *why = "no engine";
    return plans;
  }
  std::unique_ptr<DnnPlan> load(const DnnOperation& operation, const PlanAnswer& answer) override {
    if (p_.not_loaded.contains(answer.engine) || answer.bytes != operation.key() + answer.engine) return nullptr;
    return plan(operation, answer.engine, true);
  }
  PlanAnswer packed(const DnnPlan& plan) override {
    if (p_.not_written.contains(plan.engine())) throw Error("not supported");
    return {.found = true,
            .workspace_bytes = plan.workspace_bytes(),
            .engine = plan.engine(),
            .bytes = plan.operation().key() + plan.engine()};
  }
  std::uint64_t graph_hash(const DnnOperation& operation) override { return fnv1a(operation.key()); }

 private:
  static std::unique_ptr<DnnPlan> plan(const DnnOperation& operation, const std::string& engine, bool loaded) {
    auto made = std::make_unique<NamedPlan>();
    made->operation_ = operation, made->engine_ = engine, made->loaded = loaded;
    made->workspace_ = 256 * (engine[0] - 'a');
    return made;
  }
  Proposals& p_;
};

// Runs work as usual, but returns given times for engines.
class TimingDevice : public HostDevice {
 public:
  using HostDevice::HostDevice;
  double time(const std::function<void(Stream)>& work, int) override {
    ran_.clear();
    work(compute_stream());
    finish_all();
    if (!can_time) return -1;
    if (!ran_.empty()) ++timings;
    return ran_.empty() ? 0 : seconds.at(ran_);
  }
  void run(const DnnPlan& plan, std::span<void* const> tensors, void* workspace, Stream stream) override {
    if (seconds.at(plan.engine()) < 0) throw Error("it does not run");
    ran_ = plan.engine();
    finish_all();
    const auto* input = static_cast<const std::uint16_t*>(tensors[0]);
    zeros += std::count(input, input + plan.operation().tensors()[0].elements(), 0);
    HostDevice::run(plan, tensors, workspace, stream);
  }
  std::string why_unusable() override { return lost; }
  bool can_time = true;
  std::string lost;  // the error that made the device unusable
  int timings = 0;
  std::ptrdiff_t zeros = 0;  // in the inputs of all runs
  std::map<std::string, double> seconds = {{"a", 4}, {"b", 3}, {"c", 1}, {"d", 2}, {"e", 1}, {"f", 2}};

 private:
  std::string ran_;
};

class CudaPlanStore : public WithFolder {
 protected:
  void SetUp() override {
    WithFolder::SetUp();
    unsetenv("RINGTRAIN_PLAN_CANDIDATES");
  }
  void TearDown() override {
    unsetenv("RINGTRAIN_PLAN_CANDIDATES");
    WithFolder::TearDown();
  }
  // Makes the store as a device does at the start of a run.
  PlanStore start(const std::string& folder = "") {
    return PlanStore(
        device, std::make_unique<NamingMaker>(proposals), [this] { return std::make_unique<NamingMaker>(proposals); },
        folder);
  }
  static std::string engine(PlanStore& store, const DnnOperation& operation) {
    const DnnPlan* plan = store.find(operation, nullptr);
    return plan == nullptr ? "none" : plan->engine();
  }
  TimingDevice device;
  Proposals proposals;
};

TEST_F(CudaPlanStore, TheFirstGuessIsTakenUntilThePlansAreTimedAndTheFastestFromThenOn) {
  PlanStore store = start();
  const DnnPlan* before = store.find(wide, nullptr);
  EXPECT_EQ(before->engine(), "a");
  EXPECT_EQ(store.find(wide, nullptr), before);
  const std::int64_t memory = device.allocated_bytes();
  EXPECT_GT(store.tune(wide, 4), 0);
  EXPECT_EQ(engine(store, wide), "c");
  EXPECT_EQ(before->engine(), "a") << "a program may hold it";
  EXPECT_EQ(device.allocated_bytes(), memory) << "scratch is given back";
  device.check_guards();
  EXPECT_EQ(store.tune(wide, 4), 0) << "it is known now";
  EXPECT_EQ(device.timings, 4);
  EXPECT_EQ(device.zeros, 0) << "plans are timed on random numbers";
}

TEST_F(CudaPlanStore, NoMoreAreTimedThanAskedForAndTheSettingStandsInItsPlace) {
  PlanStore store = start();
  store.tune(wide, 2);
  EXPECT_EQ(engine(store, wide), "b");
  setenv("RINGTRAIN_PLAN_CANDIDATES", "1", 1);
  PlanStore untimed = start();
  EXPECT_EQ(untimed.tune(wide, 4), 0);
  EXPECT_EQ(engine(untimed, wide), "a");
  setenv("RINGTRAIN_PLAN_CANDIDATES", "3", 1);
  PlanStore set = start();
  device.timings = 0;
  set.tune(wide, 16);
  EXPECT_EQ(device.timings, 3);
  for (const char* wrong : {"0", "17", "many", "3x"}) {
    setenv("RINGTRAIN_PLAN_CANDIDATES", wrong, 1);
    expect_contains(message_of([&] { start(); }), cat("RINGTRAIN_PLAN_CANDIDATES is '", wrong, "'"));
  }
}

TEST_F(CudaPlanStore, WhatWasPreparedIsNotBuiltAgain) {
  PlanStore store = start();
  const DnnOperation operations[] = {wide, deep, none, wide};
  store.prepare(operations, usual_plan_candidates);
  EXPECT_EQ(proposals.builds[wide.key()], static_cast<std::size_t>(usual_plan_candidates));
  const auto asked = proposals.builds;
  std::string why;
  EXPECT_EQ(store.find(none, &why), nullptr);
  EXPECT_EQ(why, "no engine");
  EXPECT_EQ(engine(store, wide), "a");
  store.tune(wide, 4);
  store.tune(deep, 4);
  EXPECT_EQ(engine(store, wide), "c");
  EXPECT_EQ(engine(store, deep), "e");
  store.prepare(operations, usual_plan_candidates);
  EXPECT_EQ(proposals.builds, asked);
}

TEST_F(CudaPlanStore, NoOperationIsBegunAfterTheDeadlineAndTheRestIsBuiltWhenAskedFor) {
  PlanStore store = start();
  const DnnOperation operations[] = {deep, none, wide};
  testing::internal::CaptureStdout();
  store.prepare(operations, 2, [&] {
    const std::lock_guard lock(proposals.mutex);
    return proposals.builds.contains(deep.key());
  });
  const std::string lines = testing::internal::GetCapturedStdout();
  const std::size_t left_out = 3 - proposals.builds.size();
  EXPECT_EQ(proposals.builds.at(deep.key()), 2u) << "the first of the list";
  if (left_out > 0) expect_contains(lines, cat("; ", left_out, " operations were not reached by the deadline"));
  EXPECT_EQ(engine(store, wide), "a");
  testing::internal::CaptureStdout();
  PlanStore stopped = start();
  proposals.builds.clear();
  stopped.prepare(operations, 2, [] { return true; });
  EXPECT_TRUE(proposals.builds.empty());
  const std::string stopped_lines = testing::internal::GetCapturedStdout();
  expect_contains(stopped_lines, "cuDNN built 0 plans in ");
  expect_contains(stopped_lines, "; 3 operations were not reached by the deadline");
  EXPECT_EQ(engine(stopped, wide), "a");
}

TEST_F(CudaPlanStore, APlanIsInTheCacheAsSoonAsItIsBuiltUnlessATimedOneIsThere) {
  start(path("cache")).tune(wide, 4);
  proposals.builds.clear();
  const DnnOperation operations[] = {wide, deep, none};
  start(path("cache")).prepare(operations, usual_plan_candidates);  // and then the process is killed
  EXPECT_EQ(proposals.builds.size(), 3u);
  proposals.builds.clear();
  PlanStore later = start(path("cache"));
  later.prepare(operations, 1);
  EXPECT_EQ(engine(later, wide), "c");
  EXPECT_EQ(engine(later, deep), "e");
  EXPECT_EQ(engine(later, none), "none");
  EXPECT_TRUE(proposals.builds.empty());
}

TEST_F(CudaPlanStore, WhereNothingWillBeTimedOnePlanIsBuilt) {
  PlanStore store = start(path("cache"));
  const DnnOperation operations[] = {wide, deep};
  store.prepare(operations, 1);
  EXPECT_EQ(proposals.builds[wide.key()], 1u);
  EXPECT_EQ(engine(store, wide), "a");
  PlanStore again = start(path("cache"));
  const auto asked = proposals.builds;
  again.prepare(operations, 1);
  EXPECT_EQ(proposals.builds[wide.key()], asked.at(wide.key())) << "it lies in the cache";
}

TEST_F(CudaPlanStore, SeveralThreadsBuildEachWithItsOwnMakerAndNothingIsLost) {
  std::vector<DnnOperation> operations;
  for (std::int64_t k = 1; k <= 64; ++k) {
    operations.push_back(wide);
    operations.back().k = k;
    proposals.engines[operations.back().key()] = {k % 2 == 0 ? "b" : "c"};
  }
  std::atomic<int> makers = 0;
  PlanStore store(
      device, std::make_unique<NamingMaker>(proposals),
      [&]() -> std::unique_ptr<PlanMaker> {
        if (++makers == 1) throw Error("no memory for another handle");
        return std::make_unique<NamingMaker>(proposals);
      },
      "");
  store.prepare(operations, usual_plan_candidates);
  EXPECT_EQ(proposals.builds.size(), 64u);
  for (const DnnOperation& operation : operations)
    EXPECT_EQ(engine(store, operation), operation.k % 2 == 0 ? "b" : "c");
}

TEST_F(CudaPlanStore, ATimedPlanIsKeptInTheCacheAndAnUntimedOneIsTimedAtTheNextStart) {
  PlanStore first = start(path("cache"));
  EXPECT_EQ(engine(first, wide), "a");
  first.tune(deep, 2);
  first.find(none, nullptr);
  proposals.builds.clear();

  PlanStore second = start(path("cache"));
  EXPECT_EQ(second.tune(deep, 2), 0);
  EXPECT_EQ(second.find(none, nullptr), nullptr);
  EXPECT_TRUE(proposals.builds.empty());
  EXPECT_GT(second.tune(wide, 4), 0);

  PlanStore third = start(path("cache"));
  EXPECT_EQ(engine(third, wide), "c");
  EXPECT_TRUE(static_cast<const NamedPlan*>(third.find(wide, nullptr))->loaded);
  EXPECT_GT(third.tune(wide, 8), 0) << "more were asked for than before";
}

// A resumed run uses the plans that it had, timed or not, whatever the cache holds now.
TEST_F(CudaPlanStore, PlansOfARunAreTakenAsTheyAreAndWrittenDownAgainAsTheyWere) {
  PlanStore first = start();
  first.tune(wide, 2);  // takes "b", which is not the best
  first.find(deep, nullptr);
  first.find(none, nullptr);
  const std::string kept = pack(first.packed());

  start(path("cache")).tune(wide, 4);
  std::string again = kept;
  for (int resumed = 0; resumed < 2; ++resumed) {
    proposals.builds.clear();
    PlanStore store = start(path("cache"));
    store.take(unpack(again));
    const DnnOperation operations[] = {wide, deep, none};
    store.prepare(operations, usual_plan_candidates);
    for (const DnnOperation& operation : operations) EXPECT_EQ(store.tune(operation, 4), 0);
    EXPECT_EQ(engine(store, wide), "b");
    EXPECT_TRUE(static_cast<const NamedPlan*>(store.find(wide, nullptr))->loaded);
    EXPECT_TRUE(proposals.builds.empty());
    again = pack(store.packed());
    EXPECT_EQ(again, kept);
  }
}

TEST_F(CudaPlanStore, APlanThatIsNotTakenHereIsSearchedAnew) {
  PlanStore first = start();
  first.find(wide, nullptr);
  const PackedPlans kept = first.packed();
  proposals.not_loaded = {"a"};
  PlanStore store = start();
  store.take(kept);
  testing::internal::CaptureStderr();
  EXPECT_EQ(engine(store, wide), "a");
  expect_contains(testing::internal::GetCapturedStderr(), wide.key());
  EXPECT_FALSE(static_cast<const NamedPlan*>(store.find(wide, nullptr))->loaded);
}

TEST_F(CudaPlanStore, APlanThatCannotBeWrittenDownIsUsedAllTheSame) {
  proposals.not_written = {"a"};
  PlanStore store = start(path("cache"));
  const DnnOperation operations[] = {wide};
  testing::internal::CaptureStderr();
  store.prepare(operations, usual_plan_candidates);
  EXPECT_EQ(engine(store, wide), "a");
  store.find(deep, nullptr);
  EXPECT_EQ(store.packed().size(), 1u);
  expect_contains(testing::internal::GetCapturedStderr(), "cannot be kept");
}

TEST_F(CudaPlanStore, APlanThatDoesNotRunLosesAndWhatCannotBeTimedStays) {
  PlanStore store = start();
  device.seconds["c"] = -1;
  testing::internal::CaptureStderr();
  store.tune(wide, 4);
  expect_contains(testing::internal::GetCapturedStderr(), "the plan c of '" + wide.key());
  EXPECT_EQ(engine(store, wide), "d");
  device.seconds["f"] = -1;
  device.lost = "an illegal address";
  expect_contains(message_of([&] { store.tune(deep, 2); }), "it does not run");
  device.can_time = false;
  EXPECT_EQ(store.tune(deep, 4), 0);
  EXPECT_EQ(engine(store, deep), "e");

  TimingDevice small({.memory_bytes = 64});
  std::vector<std::unique_ptr<DnnPlan>> plans = NamingMaker(proposals).build(wide, 4, nullptr);
  double spent = 0;
  testing::internal::CaptureStderr();
  EXPECT_TRUE(time_plans(small, plans, spent).empty());
  expect_contains(testing::internal::GetCapturedStderr(), "timing " + wide.key());
}

}  // namespace
}  // namespace ringtrain::cuda
