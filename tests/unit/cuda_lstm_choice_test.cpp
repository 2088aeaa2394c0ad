// Tests how the algorithm of a recurrent layer is chosen: without excluded algorithms, and on random numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>

#include "backend/cuda/lstm/program.h"
#include "tests/emulation/host_device.h"
#include "tests/unit/with_environment.h"
#include "tests/unit/with_folder.h"

namespace ringtrain::cuda {
namespace {

const RnnOperation layer = {.layers = 1, .input = 8, .hidden = 8, .length = 2, .batch = 2, .type = Type::bf16};

// Times work, and counts the forward passes that begin with nothing but zeros.
class WatchingDevice : public HostDevice {
 public:
  WatchingDevice() : HostDevice({.times = true}) {}
  void run_forward(const RnnPlan& plan, const RnnForward& a, Stream stream) override {
    finish_all();
    const auto is_zero = [](const void* memory, std::int64_t bytes) {
      const auto* begin = static_cast<const std::byte*>(memory);
      return std::all_of(begin, begin + bytes, [](std::byte b) { return b == std::byte{0}; });
    };
    const RnnOperation& o = plan.operation();
    ++forward_passes;
    on_zeros +=
        is_zero(a.weights, plan.weight_bytes()) || is_zero(a.x, o.length * o.batch * o.input * bytes_of(o.type));
    HostDevice::run_forward(plan, a, stream);
  }
  int forward_passes = 0, on_zeros = 0;
};

TEST(CudaLstmChoice, CallsAreTimedOnNumbersThatAreNotZero) {
  WatchingDevice device;
  FusionTable table;
  choose_lstm_plans(device, table, layer, true);
  EXPECT_GE(device.forward_passes, 4);
  EXPECT_EQ(device.on_zeros, 0);
}

TEST(CudaLstmChoice, AnExcludedAlgorithmIsRefusedWithTheReason) {
  const WithEnvironment set(Variables{{"RINGTRAIN_WITHOUT_RNN", "standard,persist_static"}});
  WatchingDevice device;
  FusionTable table;
  const RnnAlgorithm taken = choose_lstm_plans(device, table, layer, true).front()->operation().algorithm;
  EXPECT_TRUE(taken == RnnAlgorithm::persist_dynamic || taken == RnnAlgorithm::persist_small_h);
  for (const RnnAlgorithm a : {RnnAlgorithm::standard, RnnAlgorithm::persist_static})
    expect_contains(table.choices().front().refused, rnn_algorithm_name(a));
  expect_contains(table.choices().front().refused, "excluded by RINGTRAIN_WITHOUT_RNN");
  EXPECT_EQ(why_excluded(RnnAlgorithm::persist_dynamic), "");
}

TEST(CudaLstmChoice, ANameThatIsNoAlgorithmIsAnError) {
  const WithEnvironment set(Variables{{"RINGTRAIN_WITHOUT_RNN", "persist"}});
  expect_contains(message_of([] { why_excluded(RnnAlgorithm::standard); }), "RINGTRAIN_WITHOUT_RNN names 'persist'");
}

}  // namespace
}  // namespace ringtrain::cuda
