// Whole programs on the GPU: the CPU backend's training curve, the same bits each time, with graphs and without, and
// the memory that was predicted.
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/cuda_training.h"

namespace ringtrain::cuda {
namespace {

struct Case {
  const char* name;
  std::function<Task()> task;
  // Of the gradient, by roundings of 2^-11 (tf32, fp16) and 2^-9 (bf16): the bounds of
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

FusionTable& choices() {  // one search for all tests: what is compared bit for bit has to choose alike
  static FusionTable table(20);
  return table;
}

Curve train_on_gpu(const Task& task, bool graphs = true) {
  return train(*make_backend(gpu(), {.graphs = graphs, .segment_elements = 4096, .fusions = &choices()}), task);
}

class GpuTraining : public testing::TestWithParam<Case> {};

TEST_P(GpuTraining, TwentyStepsFollowTheCpusCurve) {
  Task task = GetParam().task();
  task.steps = 20;
  const Curve cpu = train_on_cpu(task), device = train_on_gpu(task);
  for (std::size_t step = 0; step < cpu.sums.size(); ++step) {
    // Roundings grow from step to step.
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

INSTANTIATE_TEST_SUITE_P(Networks, GpuTraining, testing::ValuesIn(cases()),
                         [](const auto& information) { return std::string(information.param.name); });

TEST(GpuMemory, AProgramTakesWhatItPredicts) {
  const bool small = on_host_device();
  const Graph graph = small_resnet(50, small ? 8 : 64, "imagenet", small ? 32 : 224);
  const std::int64_t samples = small ? 4 : 256;  // as the search of fusions: the plans are there
  const auto backend = make_backend(gpu(), {.fusions = &choices()});
  const auto program = backend->compile(graph, samples, Precision::bf16, PassMode::training, samples);
  std::int64_t predicted = 0;
  for (const MemoryItem& item : program->memory()) predicted += item.bytes;
  const std::int64_t allocated_before = gpu().allocated_bytes();
  program->allocate();
  const std::int64_t allocated = gpu().allocated_bytes() - allocated_before;
  const DeviceFacts& facts = gpu().facts();
  // The second: CUDA's context and whoever else is there.
  std::printf("predicted %.1f MiB, allocated %.1f MiB; %.1f MiB were taken before\n",
              static_cast<double>(predicted) / 1048576, static_cast<double>(allocated) / 1048576,
              static_cast<double>(facts.memory_bytes - facts.free_bytes) / 1048576);
  EXPECT_NEAR(static_cast<double>(allocated), static_cast<double>(predicted), 0.01 * static_cast<double>(predicted));
}

TEST(GpuFusions, TheChoicesOfResNet50AreSearchedAndWritten) {
  const bool small = on_host_device();
  const Graph graph = small_resnet(50, small ? 8 : 64, "imagenet", small ? 32 : 224);
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    FusionTable table(setting("RINGTRAIN_GPU_SECONDS", 60));
    const std::int64_t samples = small ? 4 : 256;
    const auto backend = make_backend(gpu(), {.fusions = &table});
    backend->compile(graph, samples, precision, PassMode::training, samples);
    EXPECT_FALSE(table.choices().empty());
    if (const std::string file = out_file("fusions.txt"); !file.empty())
      std::ofstream(file, std::ios::app) << "# " << precision_name(precision) << "\n" << table.text();
  }
}

}  // namespace
}  // namespace ringtrain::cuda
