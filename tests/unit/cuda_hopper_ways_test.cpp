// Tests when a layer chooses a convolution of the library for Hopper. It never does without timing, and only if the
// convolution computes on this device what cuDNN's plain operation computes. cuda_image_programs_test.cpp tests that
// each way trains as the CPU does, together with all other ways.
#include <gtest/gtest.h>

#include "tests/emulation/host_device.h"
#include "tests/unit/cuda_training.h"

namespace ringtrain::cuda {
namespace {

struct Chosen {
  int by_cutlass = 0, offered = 0;
  std::string refused, table;
};

// A task for a device that refuses cuDNN's fused operations, so that those of CUTLASS move the fewest bytes and take
// the least time.
Task two_groups(Precision precision) {
  Task task = image_task(small_resnet(18, 8, "small", 16), 4, 4, 2);
  task.precision = precision;
  return task;
}

Chosen choose(Precision precision, bool timed, const std::function<bool(const Call&)>& lost = {}) {
  const Task task = two_groups(precision);
  HostDeviceOptions options;
  options.times = timed;
  options.refuse_dnn = [](const DnnOperation& o) {
    const bool fused = o.prologue != Prologue::none || o.epilogue != Epilogue::none;
    return fused && o.kind != DnnKind::matmul && o.engine != Engine::hopper ? "no engine" : "";
  };
  HostDevice device(options);
  device.skip = lost;
  FusionTable table;
  make_backend(device, {.fusions = &table})
      ->compile(task.graph, task.micro_batch, task.precision, PassMode::training, task.group);
  Chosen chosen;
  chosen.table = table.text();
  for (const FusionChoice& choice : table.choices()) {
    chosen.by_cutlass += choice.way.find("CUTLASS") != std::string::npos;
    for (const std::string& way : choice.ways) chosen.offered += way.find("CUTLASS") != std::string::npos;
    chosen.refused += choice.refused;
  }
  return chosen;
}

TEST(CudaHopperWays, NoneIsTakenUntimed) {
  const Chosen chosen = choose(Precision::bf16, false);
  EXPECT_GT(chosen.offered, 50);
  EXPECT_EQ(chosen.by_cutlass, 0);
}

TEST(CudaHopperWays, TheFastestIsTakenWhereItComputesWhatCudnnDoes) {
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    const Chosen chosen = choose(precision, true);
    EXPECT_GT(chosen.by_cutlass, 5) << precision_name(precision);
    EXPECT_EQ(chosen.refused.find("where cuDNN's"), std::string::npos) << chosen.refused;
  }
}

// The statistics are those of each group, although one launch covers all groups.
TEST(CudaHopperWays, WhatWasChosenTrainsAsTheCpuDoes) {
  const Curve expected = train_on_cpu(two_groups(Precision::fp32));
  const Task task = two_groups(Precision::fp16);
  const Chosen chosen = choose(Precision::fp16, true);
  FusionTable table;
  table.load(chosen.table);
  int launches = 0;
  HostDevice device;
  const std::unique_ptr<Backend> backend = make_backend(device, {.fusions = &table});
  const Curve actual = train(*backend, task);
  for (const Call& call : device.flat_calls()) launches += call.name.find(" g2 ") != std::string::npos;
  EXPECT_GT(launches, 10);
  expect_equal_training(task, expected, actual,
                        {.loss = 2e-3, .gradients = 0, .weights = 1e-3, .logits = 1e-2, .whole_gradient = 0.012});
}

TEST(CudaHopperWays, OneThatComputesSomethingElseIsRefusedHoweverFast) {
  const Chosen chosen =
      choose(Precision::bf16, true, [](const Call& call) { return call.name.find("+hopper") != std::string::npos; });
  EXPECT_GT(chosen.offered, 50);
  EXPECT_EQ(chosen.by_cutlass, 0);
  EXPECT_NE(chosen.refused.find("where cuDNN's plain operation makes it"), std::string::npos) << chosen.refused;
}

TEST(CudaHopperWays, NoneIsOfferedInFp32) {
  EXPECT_EQ(choose(Precision::fp32, false).offered, 0);
}

}  // namespace
}  // namespace ringtrain::cuda
