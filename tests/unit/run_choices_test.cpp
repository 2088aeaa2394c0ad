// Tests that a resumed run on GPUs finds its earlier choices. Plans need the same type of device and the same cuDNN.
// NCCL's variables are valid on any device.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "backend/cuda/backend.h"
#include "backend/cuda/device/plan_store.h"
#include "run/machine.h"
#include "tests/emulation/host_device.h"
#include "tests/unit/cuda_training.h"
#include "tests/unit/scripted_host.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

// Counts the operations for which it has to search a plan. The content of a plan is the name of its engine.
class SearchingDevice final : public cuda::HostDevice {
 public:
  SearchingDevice(std::string cudnn, std::string engine) : engine_(std::move(engine)) {
    facts_ = cuda::HostDevice::facts();
    facts_.cudnn_version = std::move(cudnn);
  }
  const cuda::DeviceFacts& facts() const override { return facts_; }
  const cuda::DnnPlan* plan(const cuda::DnnOperation& operation, std::string* why) override {
    if (!known_.contains(operation.key())) {
      const auto taken = taken_.find(operation.key());
      if (taken == taken_.end()) ++searches;
      known_[operation.key()] =
          taken == taken_.end() ? cuda::PlanAnswer{.found = true, .engine = engine_} : taken->second;
    }
    return cuda::HostDevice::plan(operation, why);
  }
  using cuda::HostDevice::plan;
  std::string packed_plans() override { return pack(known_); }
  void take_plans(const std::string& packed) override { taken_ = cuda::unpack(packed); }
  int searches = 0;

 private:
  cuda::DeviceFacts facts_;
  std::string engine_;
  cuda::PackedPlans known_, taken_;
};

// The results of one start of a run.
struct RunStart {
  int searches;
  RunChoices choices;
  std::string fusions;
  std::string log;
};
RunStart start(const std::string& cudnn, const std::string& engine, const RunChoices& kept,
               const std::string& fusions) {
  Machine machine;
  auto device = std::make_unique<SearchingDevice>(cudnn, engine);
  const SearchingDevice& searching = *device;
  machine.device = std::move(device);
  machine.fusions = std::make_unique<cuda::FusionTable>(0);
  machine.host = std::make_unique<ScriptedHost>(0, 1);
  machine.backend = cuda::make_backend(*machine.device, {.fusions = machine.fusions.get()});
  testing::internal::CaptureStdout();
  machine.take_choices(fusions, kept);
  const std::string log = testing::internal::GetCapturedStdout();
  machine.agree_on_fusions(
      [&] { machine.backend->compile(small_resnet(18, 8, "small", 8), 2, Precision::bf16, PassMode::training, 2); });
  return {searching.searches, machine.choices(), machine.fusion_choices(), log};
}

class KeptChoices : public WithFolder {
 protected:
  // Writes the choices to the file and reads them back.
  RunChoices written(const RunChoices& choices) {
    write_choices(folder_.string(), choices);
    return read_choices(folder_.string());
  }
};

TEST_F(KeptChoices, AResumedRunTakesItsPlansWithoutSearching) {
  const RunStart first = start("9.19.0", "engine 1", {}, "");
  EXPECT_GT(first.searches, 0);
  const RunStart resumed = start("9.19.0", "engine 2", written(first.choices), first.fusions);
  EXPECT_EQ(resumed.searches, 0);
  EXPECT_EQ(resumed.choices.plans, first.choices.plans) << "another engine";
  EXPECT_EQ(resumed.fusions, first.fusions);
  EXPECT_EQ(resumed.log, "");
}

TEST_F(KeptChoices, AnotherCudnnOrDeviceSearchesAnewAndSaysSoOnce) {
  const RunStart first = start("9.19.0", "engine 1", {}, "");
  const RunStart resumed = start("9.20.0", "engine 2", written(first.choices), first.fusions);
  EXPECT_EQ(resumed.searches, first.searches);
  EXPECT_NE(resumed.log.find("9.19.0"), std::string::npos) << resumed.log;
  EXPECT_EQ(std::ranges::count(resumed.log, '\n'), 1);
  EXPECT_EQ(written(resumed.choices).cudnn, "9.20.0");
  RunChoices other = first.choices;
  other.device = "another GPU";
  EXPECT_EQ(start("9.19.0", "engine 2", other, first.fusions).searches, first.searches);
}

TEST_F(KeptChoices, TheFileHoldsEveryByteAndIsWrittenOnlyWhenItChanges) {
  RunChoices choices{"a GPU", "9.19.0", {{"nccl", "2.28.9"}, {"NCCL_ALGO", "Tree"}}, std::string("a\n\0\xff\n", 5)};
  const RunChoices read = written(choices);
  EXPECT_EQ(read.device, choices.device);
  EXPECT_EQ(read.cudnn, choices.cudnn);
  EXPECT_EQ(read.communication, choices.communication);
  EXPECT_EQ(read.plans, choices.plans);
  const auto at = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  std::filesystem::last_write_time(path("choices"), at);
  const auto before = std::filesystem::last_write_time(path("choices"));
  written(choices);
  EXPECT_EQ(std::filesystem::last_write_time(path("choices")), before);
  choices.plans += "x";
  EXPECT_EQ(written(choices).plans, choices.plans);
  EXPECT_NE(std::filesystem::last_write_time(path("choices")), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(KeptChoices, ADamagedFileCountsAsNone) {
  EXPECT_EQ(read_choices(folder_.string()).head(), RunChoices().head());
  write_choices(folder_.string(), {"a GPU", "9.19.0", {}, "plans"});
  std::fstream file(path("choices"), std::ios::binary | std::ios::in | std::ios::out | std::ios::ate);
  const auto size = static_cast<std::int64_t>(file.tellp());
  std::string text(static_cast<std::size_t>(size), 0);
  file.seekg(0).read(text.data(), size);
  for (std::int64_t i = 0; i < size; ++i) {
    std::string damaged = text;
    damaged[static_cast<std::size_t>(i)] = static_cast<char>(damaged[static_cast<std::size_t>(i)] ^ 1);
    std::ofstream(path("choices"), std::ios::binary) << damaged;
    testing::internal::CaptureStderr();
    EXPECT_EQ(read_choices(folder_.string()).head(), RunChoices().head()) << "byte " << i;
    EXPECT_NE(testing::internal::GetCapturedStderr(), "");
    std::ofstream(path("choices"), std::ios::binary) << text.substr(0, static_cast<std::size_t>(i));
    testing::internal::CaptureStderr();
    EXPECT_EQ(read_choices(folder_.string()).head(), RunChoices().head()) << "cut at " << i;
    testing::internal::GetCapturedStderr();
  }
}

TEST_F(KeptChoices, OtherRanksAreToldWhatNcclNeeds) {
  const RunChoices choices{"a GPU", "9.19.0", {{"NCCL_ALGO", "Tree"}, {"algorithm", "auto"}}, "plans"};
  const RunChoices told = RunChoices::of_head(choices.head());
  EXPECT_EQ(told.communication, choices.communication);
  EXPECT_EQ(told.plans, "");
}

}  // namespace
}  // namespace ringtrain
