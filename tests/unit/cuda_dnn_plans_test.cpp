// Tests real cuDNN plans for GPUs that are only described. The recorded tables must fit the graphs that the program
// builds now, and a few operations are planned again. These tests need cuDNN, but no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "backend/cuda/device/libraries.h"
#include "backend/cuda/device/plan_process.h"
#include "backend/cuda/device/plan_store.h"
#include "base/child_process.h"
#include "tests/unit/cuda_models.h"
#include "tests/unit/recorded_rows.h"
#include "tests/unit/repository.h"
#include "tests/unit/with_folder.h"

namespace ringtrain::cuda {
namespace {

class CudaDnnPlans : public WithFolder, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    WithFolder::SetUp();
    if (std::string why; find_cuda_library(&why) == nullptr) GTEST_SKIP() << why;
    if (rows_of("fusions").empty()) GTEST_SKIP() << "nothing is recorded; " << advice();
    setenv("RINGTRAIN_EXECUTABLE", std::filesystem::absolute(repository() / "bin/ringtrain").c_str(), 0);
  }
  std::vector<std::string> rows_of(const std::string& what) const {
    return recorded_rows(repository() / recorded_folder / (what + ".csv"), GetParam());
  }
  // One row of the record. The map's key is the operation.
  struct Row {
    std::string cudnn;
    std::uint64_t graph;
    PlanAnswer answer;
  };
  std::map<std::string, Row> rows() const {
    std::map<std::string, Row> all;
    for (const std::string& line : rows_of("plans")) {
      std::vector<std::string> parts(1);
      for (const char c : line)
        if (c == ',')
          parts.emplace_back();
        else
          parts.back() += c;
      if (parts.size() != 7 || parts[0] == "cudnn") continue;
      all[parts[3]] = {parts[0], std::strtoull(parts[2].c_str(), nullptr, 16),
                       parse_answer(cat(parts[4], ",", parts[5], ",", parts[6]), ',')};
    }
    return all;
  }
  std::string advice() const {
    return cat("write the record again: build/bench/cuda_plans ", GetParam(), " ",
               (repository() / recorded_folder).string());
  }
};

// Compares the hash of every recorded graph with the hash of today's graph. This finds every change in how these graphs
// are built, without planning.
TEST_P(CudaDnnPlans, CudnnIsAskedWhatItWasAskedForTheRecord) {
  const DeviceDescription description = find_description(GetParam());
  PlanProcess process(description.name, description.json);
  const std::map<std::string, Row> all = rows();
  EXPECT_GT(all.size(), 300u);
  int changed = 0;
  for (const auto& [key, row] : all)
    if (process.hash(parse_operation(key)) != row.graph && ++changed <= 3)
      ADD_FAILURE() << key << " is another graph now";
  EXPECT_EQ(changed, 0) << advice();
}

TEST_P(CudaDnnPlans, RefusalsAreCudnnsAndNotTheStandInsAndEveryRefusalHasAReason) {
  for (const auto& [key, row] : rows()) {
    EXPECT_FALSE((row.answer.found ? row.answer.engine : row.answer.why).empty()) << key;
    for (const char* foreign : {"PREREQUISITE_MISSING", "undefined symbol", "no answer"})
      EXPECT_EQ(row.answer.why.find(foreign), std::string::npos) << key << ": " << row.answer.why;
  }
}

// Compiles all pairs of model and precision in planned_passes() for the described GPU. Every layer must find a plan and
// choose the recorded fusion.
TEST_P(CudaDnnPlans, EveryLayerOfEveryModelFindsAPlanAndTakesTheRecordedFusion) {
  const std::string copy = path("plans.csv");
  const std::size_t before = rows_of("plans").size();
  for (std::ofstream out(copy); const std::string& row : rows_of("plans")) out << row << "\n";
  const std::unique_ptr<Device> device = make_described_device(find_description(GetParam()), copy);
  if (device->facts().cudnn_version != rows().begin()->second.cudnn)
    GTEST_SKIP() << "the record is of cuDNN " << rows().begin()->second.cudnn;
  std::vector<std::string> lines;
  for (const auto& [model, precision] : planned_passes()) {
    const std::vector<std::string> part = fusion_lines(*device, model, precision);
    lines.insert(lines.end(), part.begin(), part.end());
  }
  std::ranges::sort(lines);
  EXPECT_EQ(lines, rows_of("fusions")) << advice();
  EXPECT_EQ(read_lines(copy).size(), before) << "operations that the record does not know; " << advice();
}

TEST_P(CudaDnnPlans, PlansAreMadeAsTheyWereRecorded) {
  const std::map<std::string, Row> all = rows();
  const DeviceDescription description = find_description(GetParam());
  PlanProcess process(description.name, description.json);
  for (const char* key :
       {"conv bf16 n32 c64 56x56 k64 r3 s1 p1", "dgrad bf16 n32 c128 56x56 k128 r3 s2 p1",
        "wgrad bf16 n32 c128 28x28 k128 r3 s1 p1", "conv bf16 n32 c64 56x56 k256 r1 s1 p0 +scale_bias_relu +sums"}) {
    ASSERT_EQ(all.count(key), 1u) << key << ": " << advice();
    const Row& row = all.at(key);
    const PlanAnswer now = process.plan(parse_operation(key));
    EXPECT_EQ(now.found, row.answer.found) << key << ": " << now.why;
    if (row.cudnn != process.cudnn_version()) continue;
    EXPECT_EQ(now.engine, row.answer.engine) << key;
    EXPECT_EQ(now.workspace_bytes, row.answer.workspace_bytes) << key;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CudaDnnPlans, testing::Values("a100", "b200", "h100", "h200"),
                         [](const auto& parameter) { return parameter.param; });

class CudaDescribedDevice : public CudaDnnPlans {};

TEST_P(CudaDescribedDevice, APlanComesBackFromItsSerialisedForm) {
  const DeviceDescription description = find_description(GetParam());
  PlanProcess process(description.name, description.json);
  // A resumed run loads its plans. The chosen plan of an operation is often not the last one that was made.
  for (const char* key :
       {"conv fp16 n32 c64 56x56 k64 r3 s1 p1 +sums",
        "wgrad fp16 n32 c64 56x56 k256 r1 s1 p0 +scale_bias_relu +specialised",
        "conv bf16 n32 c64 56x56 k256 r1 s1 p0 +scale_bias_relu", "dgrad bf16 n32 c64 56x56 k256 r1 s1 p0 +relu_sums",
        "wgrad bf16 n32 c128 28x28 k128 r3 s1 p1", "matmul fp32 m32 n1000 k2048 tb >fp32"}) {
    const DnnOperation operation = parse_operation(key);
    const PlanAnswer packed = process.pack(operation), loaded = process.load(operation, packed.bytes);
    ASSERT_TRUE(loaded.found) << key << ": " << packed.why << loaded.why;
    EXPECT_EQ(loaded.workspace_bytes, packed.workspace_bytes) << key;
    const PlanAnswer first_of_two = process.pack(operation, 2);
    EXPECT_EQ(first_of_two.engine, packed.engine) << key;
    EXPECT_EQ(first_of_two.bytes.size(), packed.bytes.size()) << key;  // cuDNN's bytes hold addresses of the process
    EXPECT_EQ(process.load(operation, first_of_two.bytes).workspace_bytes, packed.workspace_bytes) << key;
  }
}

// The bytes travel to another process, as they do to a machine with a GPU.
TEST_P(CudaDescribedDevice, AnotherProcessLoadsAPackedPlanAndRefusesADamagedOne) {
  const DeviceDescription description = find_description(GetParam());
  PlanProcess here(description.name, description.json), there(description.name, description.json);
  const DnnOperation operation = parse_operation("conv bf16 n32 c64 56x56 k64 r3 s1 p1 +sums");
  PlanAnswer packed = here.pack(operation);
  ASSERT_TRUE(packed.found) << packed.why;
  EXPECT_GT(packed.bytes.size(), 1000u);
  PlanAnswer without_bytes = packed;
  without_bytes.bytes.clear();
  EXPECT_EQ(without_bytes, here.plan(operation));
  const PlanAnswer loaded = there.load(operation, packed.bytes);
  EXPECT_TRUE(loaded.found) << loaded.why;

  packed.bytes.resize(packed.bytes.size() / 2);
  const PlanAnswer damaged = there.load(operation, packed.bytes);
  EXPECT_FALSE(damaged.found);
  EXPECT_FALSE(damaged.why.empty());
  EXPECT_TRUE(there.plan(operation).found) << "the process goes on after a refusal";

  const PlanAnswer refused = here.pack(parse_operation("conv fp32 n32 c64 56x56 k64 r3 s1 p1 +sums"));
  EXPECT_TRUE(refused.found || (refused.bytes.empty() && !refused.why.empty()));
}

// The folder must hold a loadable plan, or a refusal, for every operation of every way, under the names under which a
// PlanStore looks for them. A second device takes them from there.
TEST_P(CudaDescribedDevice, ASavingDeviceWritesThePlansOfEveryWay) {
  const DeviceDescription description = find_description(GetParam());
  FusionSite site{.name = "layer", .ways = {}};
  double bytes = 0;
  for (const char* key : {"conv bf16 n32 c64 56x56 k256 r1 s1 p0 +scale_bias_relu +sums",  // refused
                          "conv bf16 n32 c64 56x56 k64 r3 s1 p1", "conv bf16 n32 c64 56x56 k128 r1 s1 p0"})
    site.ways.push_back({.name = key, .operations = {parse_operation(key)}, .bytes = ++bytes, .trial = {}});
  const auto chosen_on = [&](Device& device) { return FusionTable(0).choose(device, site); };
  SavedPlans saved{.plan_cache = path("cache")}, again{.plan_cache = path("cache")};
  const auto device = make_saving_device(description, true, saved);
  const std::size_t chosen = chosen_on(*device);
  EXPECT_EQ(chosen_on(*make_described_device(description, "")), chosen);
  const std::string folder = plan_folder(path("cache"), device->facts().name, device->facts().cudnn_version);
  EXPECT_EQ(saved.folder, folder);
  EXPECT_EQ(saved.answers.size(), 3u);
  EXPECT_LT(saved.found(), 3);

  PlanProcess process(description.name, description.json);
  for (const FusionSite::Way& way : site.ways) {
    const DnnOperation& operation = way.operations.front();
    std::ifstream in(plan_file(folder, process.hash(operation)), std::ios::binary);
    const PackedPlans plans = unpack({std::istreambuf_iterator<char>(in), {}});
    ASSERT_EQ(plans.count(operation.key()), 1u) << operation.key();
    const PlanAnswer& answer = plans.at(operation.key());
    EXPECT_EQ(answer.found ? process.load(operation, answer.bytes).why : "", "") << operation.key();
    EXPECT_EQ(answer.found, !answer.bytes.empty());
    EXPECT_NE(answer.found, !answer.why.empty());
  }

  const auto before = std::filesystem::last_write_time(folder);
  EXPECT_EQ(chosen_on(*make_saving_device(description, true, again)), chosen);
  EXPECT_EQ(again.answers, saved.answers);
  EXPECT_EQ(std::filesystem::last_write_time(folder), before) << "no plan was made a second time";

  SavedPlans guessed{.plan_cache = path("guesses")};
  EXPECT_EQ(chosen_on(*make_saving_device(description, false, guessed)), chosen);
  EXPECT_LT(guessed.answers.size(), 3u) << "the other ways are not asked for";
}

// If the blocks of a kernel add to a sum one after the other, a counter in the workspace says whose turn it is. A plan
// without a workspace would add atomically, in any order.
TEST_P(CudaDescribedDevice, SumsAfterAConvolutionAreAddedUpInOneOrder) {
  const DeviceDescription description = find_description(GetParam());
  PlanProcess process(description.name, description.json);
  for (const char* key :
       {"conv bf16 n32 c64 56x56 k256 r1 s1 p0 +sums", "dgrad bf16 n32 c64 56x56 k256 r1 s1 p0 +relu_sums"}) {
    const PlanAnswer planned = process.plan(parse_operation(key));
    ASSERT_TRUE(planned.found) << planned.why;
    EXPECT_GT(planned.workspace_bytes, 0) << key << " by " << planned.engine;
  }
}

TEST_P(CudaDescribedDevice, AnswersComeFromTheCacheTheSecondTime) {
  const std::string file = path("plans.txt");
  const DeviceDescription description = find_description(GetParam());
  const DnnOperation operation = parse_operation("wgrad bf16 n32 c64 56x56 k64 r3 s1 p1");
  const auto first = make_described_device(description, file);
  const DnnPlan* planned = first->plan(operation);
  ASSERT_NE(planned, nullptr);
  EXPECT_EQ(planned, first->plan(operation));

  // The next device takes its answers from the file and does not ask cuDNN.
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  EXPECT_EQ(line, plan_cache_header);
  std::getline(in, line);
  std::ofstream(file) << line.substr(0, line.rfind(',')) << ",an engine of the cache\n";
  const auto second = make_described_device(description, file);
  ASSERT_NE(second->plan(operation), nullptr);
  EXPECT_EQ(second->plan(operation)->engine(), "an engine of the cache");
  EXPECT_EQ(second->plan(operation)->workspace_bytes(), planned->workspace_bytes());

  // The cache answers only for this device, graph and version of cuDNN.
  PlanProcess process(description.name, description.json);
  const std::uint64_t graph = process.hash(operation);
  const std::string version = process.cudnn_version();
  const PlanCache cache(file, description.json);
  EXPECT_NE(cache.find(version, graph, operation.key()), nullptr);
  EXPECT_EQ(cache.find(version, graph + 1, operation.key()), nullptr);
  EXPECT_EQ(cache.find("9.18.0", graph, operation.key()), nullptr);
  EXPECT_EQ(PlanCache(file, find_description("h100").json).find(version, graph, operation.key()), nullptr);
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
  // This planner crashes at the first question and is the real planner afterwards.
  const std::string script = path("ringtrain"), mark = path("mark");
  std::ofstream(script) << "#!/bin/bash\nif [ -e " << mark << " ]; then exec " << own_executable() << " \"$@\"; fi\n"
                        << "touch " << mark << "\nread line; echo ready 0; read line; kill -SEGV $$\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  for (const char* library : {"libcuda-stand-in.so", cuda_library_file})
    std::filesystem::create_symlink(std::filesystem::path(stand_in_driver_path()).parent_path() / library,
                                    path(library));
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
