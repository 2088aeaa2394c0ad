// Trains whole programs on the GPU. The tests compare the training curve with the CPU backend's, check that every run
// gives the same bits, with graphs and without, and compare the memory with the prediction.
#include <gtest/gtest.h>

#include <cstdio>
#include <limits>
#include <map>

#include "backend/cuda/program/fusion.h"
#include "base/error.h"
#include "models/models.h"
#include "tests/gpu/compared_operation.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/cuda_training.h"
#include "tests/unit/with_folder.h"

namespace ringtrain::cuda {
namespace {

struct Case {
  const char* name;
  std::function<Task()> task;
  // Tolerances of the gradient for roundings of 2^-11 (tf32, fp16) and 2^-9 (bf16), as in
  // unit/cuda_image_programs_test.cpp.
  double half_gradient, bf16_gradient;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

Task lstm(std::int64_t hidden, std::int64_t layers, double dropout, std::int64_t rows, std::int64_t micro_batch,
          bool carried) {
  return text_task({.kind = "char_lstm", .hidden = hidden, .layers = layers, .dropout = dropout}, 9, 50, rows,
                   micro_batch, carried, 4);
}

std::vector<Case> cases() {
  return {
      {"BasicSmallStemTwoGroups", [] { return image_task(small_resnet(18, 8, "small", 16, 0.1), 4, 4, 2); }, 0.006,
       0.16},
      {"BasicImageNetStemThreeMicroSteps", [] { return image_task(small_resnet(18, 8, "imagenet", 48), 6, 2, 2); },
       0.006, 0.1},
      {"BottleneckSmallStem", [] { return image_task(small_resnet(50, 8, "small", 16), 4, 4, 4); }, 0.01, 0.42},
      {"AlexNetLikeWithDropout", [] { return image_task(small_alexnet(0.5), 6, 2, 0); }, 0.012, 0.16},
      {"LstmDropout", [] { return lstm(64, 4, 0.2, 16, 16, false); }, 0.01, 0.08},
      {"LstmCarriedStateTwoMicroSteps", [] { return lstm(48, 2, 0.1, 16, 8, true); }, 0.01, 0.08},
  };
}

FusionTable& choices() {  // one search for all tests, because the same bits need the same choices
  static FusionTable table(setting("RINGTRAIN_GPU_SECONDS", 20));
  return table;
}

// The folder where plans and timed fusions are kept for the next program, or "" for none.
std::string plan_cache() {
  return variable("RINGTRAIN_PLAN_CACHE");
}

// The network and the batch with which speed is measured. They are smaller on the host device.
constexpr std::int64_t kMeasuredBatch = 256;
Graph measured_resnet() {
  return on_host_device() ? small_resnet(50, 8, "imagenet", 32) : small_resnet(50, 64, "imagenet", 224, 0, 1000);
}
std::int64_t measured_batch() {
  return on_host_device() ? 4 : kMeasuredBatch;
}

Curve train_on_gpu(const Task& task, bool graphs = true) {
  const BackendOptions options{.graphs = graphs, .segment_elements = 4096, .least_offload = 256, .fusions = &choices()};
  return train(*make_backend(gpu(), options), task);
}

class GpuTraining : public testing::TestWithParam<Case> {};

TEST_P(GpuTraining, TwentyStepsFollowTheCpusCurve) {
  Task task = GetParam().task();
  task.steps = 20;
  const Curve cpu = train_on_cpu(task), device = train_on_gpu(task);
  for (std::size_t step = 0; step < cpu.sums.size(); ++step) {
    // Rounding errors grow from step to step.
    const double allowed = 1e-5 * std::pow(1.4, static_cast<double>(step));
    EXPECT_NEAR(device.sums[step].loss, cpu.sums[step].loss, allowed * cpu.sums[step].loss) << "step " << step;
    EXPECT_EQ(device.sums[step].targets, cpu.sums[step].targets);
    EXPECT_TRUE(device.updates[step].applied);
  }
  EXPECT_LE(relative_difference(device.weights[0].data(), cpu.weights[0].data(), task.table.size()), 1e-6);
  EXPECT_LE(relative_difference(device.weights.back().data(), cpu.weights.back().data(), task.table.size()), 1e-3);
}

TEST_P(GpuTraining, OneStepInEachPrecisionIsWithinItsRoundings) {
  Task task = GetParam().task();
  task.steps = 1;
  const Curve cpu = train_on_cpu(task);
  for (const Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16}) {
    SCOPED_TRACE(precision_name(precision));
    const double unit = precision == Precision::bf16 ? 8 : precision == Precision::fp32 ? 0.01 : 1;
    task.precision = precision;
    expect_equal_training(task, cpu, train_on_gpu(task),
                          {.loss = 2e-3 * unit,
                           .gradients = 0,
                           .weights = 1e-3 * unit,
                           .logits = 1e-2 * unit,
                           .whole_gradient = precision == Precision::fp32   ? 1e-4
                                             : precision == Precision::bf16 ? GetParam().bf16_gradient
                                                                            : GetParam().half_gradient});
  }
}

TEST_P(GpuTraining, HasTheSameBitsEachTimeWithGraphsAndWithout) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    Task task = GetParam().task();
    task.precision = precision;
    task.steps = 4;
    const Curve first = train_on_gpu(task);
    expect_same_bits(first, train_on_gpu(task));
    expect_same_bits(first, train_on_gpu(task, false));
  }
}

TEST_P(GpuTraining, WhatIsRecomputedOrOffloadedChangesNoBit) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    SCOPED_TRACE(precision_name(precision));
    Task task = GetParam().task();
    task.precision = precision;
    task.steps = 4;
    const Curve plain = train_on_gpu(task);
    Task less = task;
    less.graph.offload(true);
    expect_same_bits(plain, train_on_gpu(less));
    std::vector<std::string> all;
    for (const Block& block : task.graph.blocks()) all.push_back(block.name);
    less.graph.recompute(all);
    expect_same_bits(plain, train_on_gpu(less));
    less.graph.offload(false);
    expect_same_bits(plain, train_on_gpu(less));
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, GpuTraining, testing::ValuesIn(cases()),
                         [](const auto& information) { return std::string(information.param.name); });

// One small network of each family.
std::vector<Case> families() {
  const auto cnn = [] {
    ModelConfig config;
    config.kind = "cnn";
    config.width = 16;
    return image_task(build_model(config, image_shape(16, 10)), 4, 4, 0);
  };
  return {{"ResNet", [] { return image_task(small_resnet(18, 8, "small", 8), 4, 4, 2); }, 0, 0},
          {"Cnn", cnn, 0, 0},
          {"Mlp", [] { return image_task(described_mlp(0.3), 4, 4, 0); }, 0, 0},
          {"AlexNet", [] { return image_task(small_alexnet(0.5), 4, 2, 0); }, 0, 0},
          {"Lstm", [] { return lstm(32, 2, 0.1, 8, 8, true); }, 0, 0}};
}

struct FamilyCase {
  Case family;
  Precision precision;
};
std::ostream& operator<<(std::ostream& out, const FamilyCase& c) {
  return out << c.family << " in " << precision_name(c.precision);
}
std::vector<FamilyCase> families_in_each_precision() {
  std::vector<FamilyCase> all;
  for (const Case& family : families())
    for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16})
      all.push_back({family, precision});
  return all;
}

// Returns the largest difference of one tensor of the curves, in weights, gradients, states and logits, or NaN when a
// value is not a number.
double largest_difference(const ParameterTable& table, const Curve& a, const Curve& b) {
  double largest = 0;
  const auto compare = [&](const float* of_a, const float* of_b, std::int64_t count) {
    largest = worse(largest, relative_difference(of_a, of_b, count));
  };
  for (std::size_t step = 0; step < a.sums.size(); ++step) {
    for (const Parameter& p : table.all())
      for (const auto curves : {&Curve::gradients, &Curve::weights})
        compare((a.*curves)[step].data() + p.offset, (b.*curves)[step].data() + p.offset, p.count);
    compare(a.states[step].data(), b.states[step].data(), std::ssize(a.states[step]));
  }
  for (std::size_t i = 0; i < a.logits.size(); ++i)
    compare(a.logits[i].data(), b.logits[i].data(), std::ssize(a.logits[i]));
  return largest;
}

bool same_bits(const Curve& a, const Curve& b) {
  return a.gradients == b.gradients && a.weights == b.weights && a.states == b.states && a.logits == b.logits;
}

// How far sums in another order may take three steps of the small LSTM. A wrong graph differs by about 1.
double rounding_of(Precision precision) {
  return precision == Precision::fp32 ? 1e-4 : precision == Precision::bf16 ? 0.1 : 0.02;
}

class GpuGraphs : public testing::TestWithParam<FamilyCase> {};

// cuBLAS, on which cuDNN's recurrent calls rest, may take another workspace while a graph is recorded, and then adds up
// in another order. For the LSTM such a difference is a finding and no failure.
TEST_P(GpuGraphs, GiveTheBitsOfCommandsOneByOne) {
  Task task = GetParam().family.task();
  task.precision = GetParam().precision;
  task.steps = 3;
  const Curve commands = train_on_gpu(task, false), graphs = train_on_gpu(task);
  if (std::string(GetParam().family.name) != "Lstm") return expect_same_bits(commands, graphs);
  const double difference = largest_difference(task.table, graphs, commands);
  if (!same_bits(commands, graphs))
    std::printf("finding: in %s, graphs differ from commands one by one by %g\n", precision_name(task.precision),
                difference);
  EXPECT_LE(difference, rounding_of(task.precision));
}

INSTANTIATE_TEST_SUITE_P(Families, GpuGraphs, testing::ValuesIn(families_in_each_precision()),
                         [](const auto& information) {
                           return cat(information.param.family.name, "_", precision_name(information.param.precision));
                         });

TEST(GpuMemory, AProgramTakesWhatItPredicts) {
  const Graph graph = measured_resnet();
  const std::int64_t samples = measured_batch();  // the same as in the search, so that plans exist
  FusionTable kept(0);
  load_kept_fusions(plan_cache(), kept);
  const auto backend = make_backend(gpu(), {.fusions = &kept});
  const auto program = backend->compile(graph, samples, Precision::bf16, PassMode::training, samples);
  std::int64_t predicted = 0;
  for (const MemoryItem& item : program->memory()) predicted += item.bytes;
  const std::int64_t allocated_before = gpu().allocated_bytes();
  program->allocate();
  const std::int64_t allocated = gpu().allocated_bytes() - allocated_before;
  const DeviceFacts& facts = gpu().facts();
  // The memory taken before is that of CUDA's context and of other processes.
  std::printf("predicted %.1f MiB, allocated %.1f MiB; %.1f MiB were taken before\n",
              static_cast<double>(predicted) / 1048576, static_cast<double>(allocated) / 1048576,
              static_cast<double>(facts.memory_bytes - facts.free_bytes) / 1048576);
  EXPECT_NEAR(static_cast<double>(allocated), static_cast<double>(predicted), 0.01 * static_cast<double>(predicted));
}

TEST(GpuMemory, WhatTravelsIsCarriedBesideThePass) {
  Graph graph = measured_resnet();
  const std::int64_t samples = measured_batch();
  FusionTable kept(0);
  load_kept_fusions(plan_cache(), kept);
  BackendOptions options{.fusions = &kept};
  if (on_host_device()) options.least_offload = 256;  // its network is small
  const auto backend = make_backend(gpu(), options);
  const auto bytes = [](const Program& program) {
    std::int64_t sum = 0;
    for (const MemoryItem& item : program.memory()) sum += item.bytes;
    return sum;
  };
  const auto plain = backend->compile(graph, samples, Precision::bf16, PassMode::training, samples);
  graph.offload(true);
  const auto program = backend->compile(graph, samples, Precision::bf16, PassMode::training, samples);
  const HostTraffic traffic = program->host_traffic();
  std::printf("%.1f MiB on the GPU, %.1f MiB without offload; %.1f MiB travel in %.2f ms of %.2f ms (predicted)\n",
              static_cast<double>(bytes(*program)) / 1048576, static_cast<double>(bytes(*plain)) / 1048576,
              static_cast<double>(traffic.bytes) / 1048576, 1e3 * traffic.out_seconds, 1e3 * traffic.forward_seconds);
  const std::int64_t before = gpu().allocated_bytes();
  program->allocate();
  EXPECT_EQ(gpu().allocated_bytes() - before, bytes(*program));
  EXPECT_LT(bytes(*program), bytes(*plain));
  EXPECT_GT(traffic.bytes, 0);
}

// This is the only search whose choices of fusions are kept. Every later program uses them. Each of the two precisions
// may take RINGTRAIN_GPU_SECONDS of the device's time, and RINGTRAIN_SEARCH_DEADLINE seconds in all. The choices are
// kept after every site that was timed, because the process may be ended before the search ends.
class GpuFusions : public WithFolder, public testing::WithParamInterface<Precision> {};

TEST_P(GpuFusions, OfResNet50AreSearchedAndKept) {
  FusionTable table(setting("RINGTRAIN_GPU_SECONDS", 60),
                    setting("RINGTRAIN_SEARCH_DEADLINE", std::numeric_limits<double>::infinity()));
  const std::string folder = plan_cache().empty() ? folder_.string() : plan_cache();
  load_kept_fusions(plan_cache(), table);
  keep_fusions(folder, table);
  const auto backend = make_backend(gpu(), {.fusions = &table});
  backend->compile(measured_resnet(), measured_batch(), GetParam(), PassMode::training, measured_batch());
  EXPECT_FALSE(table.choices().empty());
  std::size_t timed = 0;
  for (const FusionChoice& choice : table.choices()) {
    timed += choice.seconds > 0;
    if (!choice.refused.empty()) std::printf("%s: refused: %s\n", choice.site.c_str(), choice.refused.c_str());
  }
  std::printf("%s: %zu of %zu sites were timed\n", precision_name(GetParam()), timed, table.choices().size());
  EXPECT_EQ(timed > 0, !on_host_device());  // the host device has no times
  FusionTable again(0);                     // has no time to search, so that what it knows comes from the folder
  load_kept_fusions(folder, again);
  make_backend(gpu(), {.fusions = &again})
      ->compile(measured_resnet(), measured_batch(), GetParam(), PassMode::training, measured_batch());
  std::map<std::string, std::string> found;
  for (const FusionChoice& choice : again.choices()) found[choice.site] = choice.way;
  for (const FusionChoice& choice : table.choices())
    if (choice.seconds > 0) {
      EXPECT_EQ(found[choice.site], choice.way) << choice.site;
    }
}

INSTANTIATE_TEST_SUITE_P(Precisions, GpuFusions, testing::Values(Precision::bf16, Precision::fp16),
                         [](const auto& information) { return std::string(precision_name(information.param)); });

}  // namespace
}  // namespace ringtrain::cuda
