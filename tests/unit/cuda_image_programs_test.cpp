// Whole GPU programs for images, run on a device in host memory, against the CPU backend: several steps of training
// with every check of the device on, in each precision, with every way to fuse.
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "tests/unit/cuda_training.h"

namespace ringtrain::cuda {
namespace {

struct Case {
  const char* name;
  Graph graph;
  std::int64_t rows, micro_batch, group;
  // How far 10-bit fractions and bf16 move the gradient, by roundings and by ReLUs that they switch: measured, and half
  // as much again.
  double half_gradient, bf16_gradient;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

std::vector<Case> cases() {
  return {
      {"BasicSmallStemTwoGroups", small_resnet(18, 8, "small", 16, 0.1), 4, 4, 2, 0.006, 0.16},
      {"BasicImageNetStemThreeMicroSteps", small_resnet(18, 8, "imagenet", 48), 6, 2, 2, 0.006, 0.1},
      {"BottleneckSmallStem", small_resnet(50, 8, "small", 16), 4, 4, 4, 0.01, 0.42},
      {"BottleneckImageNetStemTwoGroups", small_resnet(50, 8, "imagenet", 48, 0.1), 4, 4, 2, 0.15, 1.1},
      {"BottleneckStrideInTheFirst", small_resnet(50, 8, "small", 16, 0, 11, "1x1"), 4, 4, 4, 0.009, 0.44},
      {"CnnOddSize", cnn({}, image_shape(13, 10), {0.1}), 4, 2, 0, 0.001, 0.05},
      {"AlexNetLikeWithDropout", small_alexnet(0.5), 6, 2, 0, 0.012, 0.16},
      {"AlexNetLikeWithNorms", small_alexnet(0.5, true), 8, 4, 2, 0.08, 0.09},
  };
}

class CudaImages : public testing::TestWithParam<Case> {};

TEST_P(CudaImages, TrainingEqualsTheCpuBackends) {
  const Case& c = GetParam();
  const Task task = image_task(c.graph, c.rows, c.micro_batch, c.group);
  expect_equal_training(task, train_on_cpu(task), train_on_host_device(task),
                        {.loss = 1e-5, .gradients = 1e-4, .weights = 1e-6, .logits = 1e-4});
}

TEST_P(CudaImages, SixteenBitTrainingIsWithinRoundingsOfFp32) {
  const Case& c = GetParam();
  Task task = image_task(c.graph, c.rows, c.micro_batch, c.group);
  task.steps = 1;
  const Curve expected = train_on_cpu(task);
  for (const Precision precision : {Precision::tf32, Precision::bf16, Precision::fp16}) {
    SCOPED_TRACE(precision_name(precision));
    const double unit = precision == Precision::bf16 ? 8 : 1;
    task.precision = precision;
    const Curve actual = train_on_host_device(task);
    EXPECT_NE(actual.sums[0].loss, expected.sums[0].loss);
    expect_equal_training(task, expected, actual,
                          {.loss = 2e-3 * unit,
                           .gradients = 0,
                           .weights = 1e-3 * unit,
                           .logits = 1e-2 * unit,
                           .whole_gradient = unit > 1 ? c.bf16_gradient : c.half_gradient});
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, CudaImages, testing::ValuesIn(cases()),
                         [](const auto& information) { return information.param.name; });

Task small_task(const std::string& stem = "imagenet", std::int64_t micro_batch = 4) {
  return image_task(small_resnet(18, 8, stem, 48), 4, micro_batch, 2);
}

// The names of the ways in a line of a table of fusions.
std::vector<std::string> ways_of(const std::string& line) {
  std::vector<std::string> result;
  std::string key = line.substr(0, line.find('\t'));
  key = key.substr(key.find(" | ", key.find(" | ") + 3) + 3);
  while (!key.empty()) {
    result.push_back(key.substr(0, key.find(" {")));
    const std::size_t next = key.find("; ", key.find("} "));
    key = next == std::string::npos ? "" : key.substr(next + 2);
  }
  return result;
}

// A table in which every site of a task takes way number `way`, or its last one. Some sites exist only where others
// take certain ways, so it is compiled until nothing new appears.
std::string forced_table(const Task& task, std::size_t way, std::size_t& most_ways) {
  std::string forced;
  for (;;) {
    FusionTable table;
    table.load(forced);
    HostDevice device;
    const auto backend = make_backend(device, {.fusions = &table});
    for (const PassMode mode : {PassMode::training, PassMode::inference})
      backend->compile(task.graph, task.micro_batch, task.precision, mode, task.group);
    std::string next;
    std::istringstream text(table.text());
    for (std::string line; std::getline(text, line);) {
      const std::vector<std::string> ways = ways_of(line);
      most_ways = std::max(most_ways, ways.size());
      const std::size_t tab = line.find('\t');
      next +=
          line.substr(0, tab + 1) + ways[std::min(way, ways.size() - 1)] + line.substr(line.find('\t', tab + 1)) + "\n";
    }
    if (next == forced) return forced;
    forced = next;
  }
}

TEST(CudaFusions, EveryWayToComputeALayerGivesTheSameTraining) {
  for (const auto& [depth, size] : {std::pair<int, int>{18, 16}, {50, 48}}) {
    Task task = image_task(small_resnet(depth, 8, size == 16 ? "small" : "imagenet", size), 4, 4, 2);
    task.steps = 2;
    const Curve expected = train_on_cpu(task);
    std::size_t ways = 1;
    for (std::size_t way = 0; way < ways; ++way) {
      const std::string forced = forced_table(task, way, ways);
      FusionTable table;
      table.load(forced);
      const Curve actual = train_on_host_device(task, {}, {.fusions = &table});
      EXPECT_EQ(table.text(), forced) << "a way was not taken";
      SCOPED_TRACE(cat("way ", way, " of ResNet-", depth));
      expect_equal_training(task, expected, actual, {.loss = 1e-5, .gradients = 1e-4, .weights = 1e-6, .logits = 1e-4});
    }
    EXPECT_GT(ways, 1u) << "nothing is fused at all";
  }
}

// cuDNN compiles none of them and takes seconds to say so.
TEST(CudaFusions, NoDataGradientWithAStrideIsAskedForSums) {
  const Task task = image_task(small_resnet(50, 8, "imagenet", 48), 4, 4, 4);
  FusionTable table;
  HostDevice device;
  make_backend(device, {.fusions = &table})->compile(task.graph, 4, Precision::bf16, PassMode::training, 4);
  EXPECT_NE(table.text().find("relu_sums"), std::string::npos);
  std::istringstream operations(table.text());
  for (std::string operation; std::getline(operations, operation, ',');) {
    const std::size_t begin = operation.find("dgrad "), stride = operation.find(" s2 ", begin);
    if (begin == std::string::npos || stride == std::string::npos) continue;
    EXPECT_EQ(operation.find("relu_sums", stride), std::string::npos) << operation;
  }
}

TEST(CudaFusions, EveryWayIsWithinRoundingsInSixteenBits) {
  Task task = image_task(small_resnet(50, 8, "small", 16), 4, 4, 4);
  task.steps = 1;
  const Curve expected = train_on_cpu(task);
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    const double unit = precision == Precision::bf16 ? 8 : 1;
    task.precision = precision;
    std::size_t ways = 1;
    for (std::size_t way = 0; way < ways; ++way) {
      FusionTable table;
      table.load(forced_table(task, way, ways));
      SCOPED_TRACE(cat("way ", way, " in ", precision_name(precision)));
      expect_equal_training(task, expected, train_on_host_device(task, {}, {.fusions = &table}),
                            {.loss = 2e-3 * unit,
                             .gradients = 0,
                             .weights = 1e-3 * unit,
                             .logits = 1e-2 * unit,
                             .whole_gradient = unit > 1 ? 0.42 : 0.012});
    }
    EXPECT_GT(ways, 1u);
  }
}

// The norm's result, ResNet's largest map, is neither written nor read, nor is its gradient.
TEST(CudaFusions, TheStemIsPooledWithoutTheMapInMemory) {
  Task task = small_task();
  task.steps = 1;
  const auto moved_bytes = [&](FusionTable& table, int& own, int& separate) {
    HostDevice device;
    const auto backend = make_backend(device, {.fusions = &table});
    train(*backend, task);
    double bytes = 0;
    for (const Call& call : device.flat_calls()) {
      if (call.kind != Call::Kind::kernel) continue;
      own += call.name.starts_with("norm_pool");
      separate += call.name.starts_with("max_pool");
      for (const Region& region : call.regions) bytes += static_cast<double>(region.bytes);
    }
    return bytes;
  };
  FusionTable table, forced;
  int own = 0, separate = 0;
  const double joined_bytes = moved_bytes(table, own, separate);
  EXPECT_EQ(own, 4) << "training: three, inference: one";
  EXPECT_EQ(separate, 0);
  std::string text = table.text();
  const std::string way = "pooled on the way\t";
  const std::size_t chosen = text.find("\t" + way);
  ASSERT_NE(chosen, std::string::npos) << text;
  forced.load(text.replace(chosen + 1, way.size(), "separate\t"));
  own = separate = 0;
  const double separate_bytes = moved_bytes(forced, own, separate);
  EXPECT_EQ(own, 1) << "in inference";
  EXPECT_EQ(separate, 2);
  // fp32, 24 x 24 and 12 x 12, 8 channels: five maps and the mask three times in training, against the pooled map and
  // its places once more; partial sums differ a little.
  const double map = 4 * 4 * 24 * 24 * 8, pooled = 4 * 5 * 12 * 12 * 8, mask = map / 32;
  EXPECT_NEAR(separate_bytes - joined_bytes, 5 * map + 3 * mask - pooled, 0.05 * map);
}

TEST(CudaFusions, ARefusedFusionFallsBackAndTheTableSaysSo) {
  const Task task = image_task(small_resnet(18, 8, "imagenet", 48), 4, 4, 4);
  FusionTable table;
  HostDeviceOptions device;
  device.refuse_dnn = [](const DnnOperation& op) {
    return op.prologue != Prologue::none || op.epilogue == Epilogue::sums ? std::string("no engine") : "";
  };
  const Curve plain = train_on_host_device(task, device, {.fusions = &table});
  EXPECT_NE(table.text().find("no engine"), std::string::npos);
  expect_equal_training(task, train_on_host_device(task), plain,
                        {.loss = 1e-5, .gradients = 1e-4, .weights = 1e-6, .logits = 1e-4});
}

TEST(CudaImagePrograms, ScaledFp16GradientsAreTheScaleTimesTheGradients) {
  Task task = small_task();
  task.steps = 2;
  task.precision = Precision::fp16;
  const Curve one = train_on_host_device(task);
  task.overflow_scale = 256;
  Curve scaled = train_on_host_device(task);
  for (std::size_t step = 0; step < scaled.gradients.size(); ++step) {
    for (std::int64_t i = 0; i < task.table.trained(); ++i) scaled.gradients[step][static_cast<std::size_t>(i)] /= 256;
    EXPECT_LE(relative_difference(scaled.gradients[step].data(), one.gradients[step].data(), task.table.size()), 1e-2);
    EXPECT_NEAR(scaled.updates[step].gradient_norm, one.updates[step].gradient_norm,
                1e-2 * one.updates[step].gradient_norm);
  }
}

TEST(CudaImagePrograms, AnOverflowLeavesWeightsStatisticsAndOptimizerUntouched) {
  Task task = small_task();
  task.steps = 2;
  task.precision = Precision::fp16;
  task.overflow_scale = 1e9f;
  const Curve curve = train_on_host_device(task);
  EXPECT_FALSE(curve.updates[0].applied);
  EXPECT_EQ(curve.weights[0], task.weights);
  EXPECT_EQ(curve.weights[1], task.weights);
}

}  // namespace
}  // namespace ringtrain::cuda
