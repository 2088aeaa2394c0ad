// Real cuDNN plans for GPUs that are only described: the recorded tables are true of the graphs as they are built now,
// and a few are planned again. Needs cuDNN, no GPU.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "backend/cuda/described_device.h"
#include "base/version.h"
#include "tests/unit/cuda_plan_table.h"

namespace ringtrain::cuda {
namespace {

class CudaDnnPlans : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (build_cuda().empty()) GTEST_SKIP() << "built without CUDA";
    const char* root = std::getenv("RINGTRAIN_ROOT");
    root_ = root == nullptr ? "." : root;
    setenv("RINGTRAIN_EXECUTABLE", std::filesystem::absolute(root_ + "/bin/ringtrain").c_str(), 0);
  }
  std::string recorded() const { return cat(root_, "/results/cuda_plans_", GetParam(), ".csv"); }

  std::string root_;
};

TEST_P(CudaDnnPlans, TheRecordKnowsEveryOperationAsItsGraphIsNow) {
  const PlanTable table = read_plan_table(recorded());
  const DeviceDescription description = find_description(GetParam());
  PlanProcess process(description.name, description.json);
  int stale = 0;
  for (const LayerOperation& l : model_operations().all()) {
    const PlanRow* row = table.find(l.operation.key());
    if (row != nullptr && row->graph == process.hash(l.operation)) continue;
    if (++stale <= 3) ADD_FAILURE() << l.operation.key() << (row ? ": another graph" : ": no row");
  }
  EXPECT_EQ(stale, 0) << "write the table again: build/bench/cuda_plans " << GetParam() << " " << recorded();
}

TEST_P(CudaDnnPlans, EveryPlainOperationFindsAPlanAndEveryRefusalHasAReason) {
  const PlanTable table = read_plan_table(recorded());
  for (const LayerOperation& l : model_operations().all()) {
    const PlanRow* row = table.find(l.operation.key());
    ASSERT_NE(row, nullptr) << l.operation.key();
    if (l.plain) EXPECT_TRUE(row->answer.found) << row->key << ": " << row->answer.why;
    EXPECT_FALSE((row->answer.found ? row->answer.engine : row->answer.why).empty()) << row->key;
    EXPECT_EQ(row->answer.why.find("MISSING"), std::string::npos) << row->key << ": " << row->answer.why;
  }
}

TEST_P(CudaDnnPlans, PlansAreMadeAsTheyWereRecorded) {
  const PlanTable table = read_plan_table(recorded());
  const DeviceDescription description = find_description(GetParam());
  PlanProcess process(description.name, description.json);
  for (const char* key :
       {"conv bf16 n32 c64 56x56 k64 r3 s1 p1", "dgrad bf16 n32 c128 56x56 k128 r3 s2 p1",
        "wgrad bf16 n32 c256 14x14 k1024 r1 s1 p0", "conv bf16 n32 c64 56x56 k256 r1 s1 p0 +scale_bias_relu +sums"}) {
    const PlanRow* row = table.find(key);
    ASSERT_NE(row, nullptr) << key;
    const PlanAnswer now = process.plan(parse_operation(key));
    EXPECT_EQ(now.found, row->answer.found) << key << ": " << now.why;
    if (table.cudnn == process.cudnn_version()) {
      PlanRow again{key, row->graph, now};
      EXPECT_EQ(plan_table_row(again), plan_table_row(*row));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CudaDnnPlans, testing::Values("a100", "b200", "h100", "h200"),
                         [](const auto& parameter) { return parameter.param; });

class CudaDescribedDevice : public CudaDnnPlans {};

TEST_P(CudaDescribedDevice, APlanComesBackFromItsSerialisedForm) {
  const DeviceDescription description = find_description(GetParam());
  PlanProcess process(description.name, description.json);
  const DnnOperation operation = parse_operation("conv fp16 n32 c64 56x56 k64 r3 s1 p1 +sums");
  const PlanAnswer planned = process.plan(operation);
  ASSERT_TRUE(planned.found) << planned.why;
  EXPECT_EQ(process.reload(operation), planned);
}

TEST_P(CudaDescribedDevice, AnswersComeFromTheCacheTheSecondTime) {
  const std::string file = testing::TempDir() + "cudnn-plans-of-a-test.txt";
  std::filesystem::remove(file);
  const DeviceDescription description = find_description(GetParam());
  const DnnOperation operation = parse_operation("wgrad bf16 n32 c64 56x56 k64 r3 s1 p1");
  const auto first = make_described_device(description, file);
  const DnnPlan* planned = first->plan(operation);
  ASSERT_NE(planned, nullptr);
  EXPECT_EQ(planned, first->plan(operation));

  // What stands in the file is what the next device says, whatever cuDNN would.
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  const std::size_t engine = line.rfind('\t');
  std::ofstream(file) << line.substr(0, engine) << "\tan engine of the cache\n";
  const auto second = make_described_device(description, file);
  ASSERT_NE(second->plan(operation), nullptr);
  EXPECT_EQ(second->plan(operation)->engine(), "an engine of the cache");
  EXPECT_EQ(second->plan(operation)->workspace_bytes(), planned->workspace_bytes());

  // Of another device it says nothing.
  DeviceDescription other = description;
  other.json.insert(1, "\"x\":1,");
  const PlanCache cache(file, other.json);
  EXPECT_EQ(cache.find("9.19.0", 1, operation.key()), nullptr);
}

TEST_P(CudaDescribedDevice, CountsMemoryAndRunsNothing) {
  const auto device = make_described_device(find_description(GetParam()), "");
  EXPECT_EQ(device->facts().compute_capability, 90);
  EXPECT_EQ(device->facts().multiprocessors, 132);
  EXPECT_FALSE(device->facts().cudnn_version.empty());
  void* memory = device->allocate(1000, "test");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 256, 0u);
  EXPECT_EQ(device->allocated_bytes(), 1000);
  EXPECT_THROW(device->allocate(device->facts().memory_bytes, "everything"), Error);
  device->release(memory);
  EXPECT_EQ(device->allocated_bytes(), 0);
  EXPECT_THROW(device->zero(memory, 1, device->compute_stream()), Error);
  EXPECT_LT(device->time([](Stream) {}, 1), 0);
}

TEST_P(CudaDescribedDevice, AGraphOnWhichCudnnCrashesIsRefusedAndTheNextOneIsPlanned) {
  const DeviceDescription description = find_description(GetParam());
  // A planner that dies at the first question and is the real one afterwards.
  const std::string script = testing::TempDir() + "ringtrain-crashes-once";
  const std::string mark = script + ".mark";
  std::filesystem::remove(mark);
  std::ofstream(script) << "#!/bin/bash\nif [ -e " << mark << " ]; then exec " << planner_executable()
                        << " \"$@\"; fi\n"
                        << "touch " << mark << "\nread line; echo ready 0; read line; kill -SEGV $$\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  std::filesystem::copy_file(stand_in_driver_path(),
                             std::filesystem::path(script).parent_path() / "libcuda-stand-in.so",
                             std::filesystem::copy_options::overwrite_existing);
  const std::string real = std::getenv("RINGTRAIN_EXECUTABLE");
  setenv("RINGTRAIN_EXECUTABLE", script.c_str(), 1);
  PlanProcess process(description.name, description.json);
  const DnnOperation operation = parse_operation("conv bf16 n32 c64 56x56 k64 r3 s1 p1");
  const PlanAnswer crashed = process.plan(operation), planned = process.plan(operation);
  setenv("RINGTRAIN_EXECUTABLE", real.c_str(), 1);
  EXPECT_FALSE(crashed.found);
  EXPECT_NE(crashed.why.find("crashed: signal 11"), std::string::npos) << crashed.why;
  EXPECT_TRUE(planned.found) << planned.why;
}

TEST_P(CudaDescribedDevice, ADescriptionThatLacksAKeyIsRefusedByName) {
  DeviceDescription description = find_description(GetParam());
  const std::size_t key = description.json.find("\"multiProcessorCount\":");
  description.json.erase(key, description.json.find(',', key) - key + 1);
  EXPECT_THROW(make_described_device(description, ""), Error);
  EXPECT_THROW(find_description("h300"), Error);
}

INSTANTIATE_TEST_SUITE_P(One, CudaDescribedDevice, testing::Values("h200"));

}  // namespace
}  // namespace ringtrain::cuda
