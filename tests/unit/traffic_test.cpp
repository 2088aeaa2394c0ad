// Tests the bytes that a program says it moves through a GPU's memory, and how `plan` prints them.
#include <gtest/gtest.h>

#include "backend/cuda/backend.h"
#include "backend/cuda/program/base.h"
#include "base/error.h"
#include "run/plan_text.h"
#include "tests/emulation/host_device.h"
#include "tests/unit/images.h"

namespace ringtrain::cuda {
namespace {

constexpr std::int64_t kBatch = 4;

const Schedule& schedule_of(const Program& program) {
  return dynamic_cast<const ProgramBase&>(program).schedule();
}

std::unique_ptr<Program> compile(HostDevice& device, FusionTable& table) {
  return make_backend(device, {.fusions = &table})
      ->compile(small_resnet(18, 8, "small", 8), kBatch, Precision::bf16, PassMode::training, kBatch);
}

// Returns the lines of a table in which every site takes the last of its ways.
std::string last_ways(const FusionTable& table) {
  std::string result;
  for (const FusionChoice& choice : table.choices())
    result += cat(choice.key, "\t", choice.ways.back(), "\t0\t", choice.site, "\t\n");
  return result;
}

double all_bytes(const Traffic& t) {
  return t.forward_bytes + t.backward_bytes + t.weights_bytes;
}

TEST(CudaTraffic, IsWhatTheCommandsMoveAndCompute) {
  HostDevice device;
  FusionTable table(0);
  const auto program = compile(device, table);
  const Traffic t = traffic_of(schedule_of(*program));
  double bytes = 0, flops = 0;
  for (const Command& command : schedule_of(*program).commands()) {
    bytes += command.bytes;
    flops += command.flops;
  }
  EXPECT_DOUBLE_EQ(all_bytes(t), bytes);
  EXPECT_DOUBLE_EQ(t.flops, flops);
  EXPECT_GT(t.forward_bytes, 0);
  EXPECT_GT(t.backward_bytes, t.forward_bytes);  // two products for each one of the forward pass
  EXPECT_GT(t.weights_bytes, 0);
  EXPECT_LT(t.weights_bytes, t.forward_bytes);
}

TEST(CudaTraffic, FollowsTheTableOfFusions) {
  HostDevice device;
  FusionTable by_bytes(0), last(0);
  const double least = all_bytes(traffic_of(schedule_of(*compile(device, by_bytes))));
  last.load(last_ways(by_bytes));
  EXPECT_GT(all_bytes(traffic_of(schedule_of(*compile(device, last)))), 1.1 * least);
  EXPECT_NE(last.text(), by_bytes.text());
}

TEST(CudaTraffic, IsPrintedPerSample) {
  const Traffic t{.forward_bytes = 256 * 1'000'000.0,
                  .backward_bytes = 256 * 2'000'000.0,
                  .weights_bytes = 51'200,
                  .flops = 256 * 3e6};
  const std::string text = ringtrain::describe_traffic(t, 256, 512, 150, 0);
  for (const char* part : {"micro-batch 256", "1,000,000\n", "2,000,000\n", "100\n", "3,000,100\n", "3,000,000\n",
                           "150 sites, nothing timed: the ways that move the fewest bytes\n"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  EXPECT_NE(ringtrain::describe_traffic(t, 256, 512, 150, 40).find("40 of 150 sites as they were timed"),
            std::string::npos);
}

}  // namespace
}  // namespace ringtrain::cuda
