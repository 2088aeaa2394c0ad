// Tests the memory on which the ways to compute a layer are timed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "tests/emulation/host_device.h"
#include "tests/unit/cuda_training.h"

namespace ringtrain::cuda {
namespace {

// Counts the operations whose first input has nothing but zeros.
class ZeroWatchingDevice : public HostDevice {
 public:
  ZeroWatchingDevice() : HostDevice({.times = true}) {}
  void run(const DnnPlan& plan, std::span<void* const> tensors, void* workspace, Stream stream) override {
    finish_all();
    const DnnTensor input = plan.operation().tensors().front();
    const auto* begin = static_cast<const std::uint8_t*>(tensors.front());
    ++operations;
    on_zeros += std::all_of(begin, begin + input.elements() * bytes_of(input.type), [](auto b) { return b == 0; });
    HostDevice::run(plan, tensors, workspace, stream);
  }
  int operations = 0, on_zeros = 0;
};

TEST(CudaTrials, AreTimedOnNumbersThatAreNotZero) {
  const Task task = image_task(small_resnet(18, 8, "small", 16), 4, 4, 2);
  ZeroWatchingDevice device;
  FusionTable table;
  make_backend(device, {.fusions = &table})
      ->compile(task.graph, task.micro_batch, Precision::bf16, PassMode::training, task.group);
  EXPECT_GT(device.operations, 20);
  EXPECT_EQ(device.on_zeros, 0);
}

}  // namespace
}  // namespace ringtrain::cuda
