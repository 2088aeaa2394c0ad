// Tests the messages that cross a pipeline's cuts between GPUs. They go through NCCL's sends and receives, or through
// host memory. mpirun starts the ranks. Several ranks on one GPU need a different NCCL_HOSTID each (tests/gpu/rank.sh).
#include "cluster/links.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cuda/device/libraries.h"
#include "base/error.h"
#include "cluster/binding.h"
#include "cluster/nccl_connection.h"
#include "parallel/pipeline.h"
#include "tests/emulation/host_device.h"
#include "tests/gpu/gpu.h"
#include "tests/mpi/mpi_peer.h"

namespace ringtrain::cuda {
namespace {

constexpr std::int64_t kCount = 500'003;  // floats in a message
constexpr std::int64_t kMicroBatches = 7;

float value(std::int64_t i, std::int64_t micro_batch, int step) {
  return static_cast<float>((i * 7 + micro_batch * 13 + step * 5) % 1021);
}

// A stage that passes on its inputs. The forward pass passes on what arrives. The backward pass passes on what arrives
// from the next stage, or, on the last stage, what the forward pass has kept.
class Relay final : public Program {
 public:
  Relay(Device& device, bool first, bool last, std::int64_t slots)
      : device_(device),
        first_(first),
        last_(last),
        own_(device, kMicroBatches * bytes(), "what stage 0 sends"),
        back_(device, kMicroBatches * bytes(), "what comes back"),
        kept_(device, slots * bytes(), "slots") {}

  static constexpr std::int64_t bytes() { return kCount * 4; }
  std::int64_t micro_batch() const override { return 1; }
  std::vector<MemoryItem> memory() const override { return {}; }
  void allocate() override {}
  void set_weights(const Vector&) override {}
  void stage(const PassInput&) override {}
  void select(int slot) override { slot_ = slot; }
  void connect(const PartTraffic& traffic) override { traffic_ = traffic; }
  PartBytes part_bytes() const override {
    const std::int64_t before = first_ ? 0 : bytes(), after = last_ ? 0 : bytes();
    return {.activations_in = before, .activations_out = after, .gradients_in = after, .gradients_out = before};
  }
  void forward(const PassContext& context) override {
    std::byte* const kept = kept_.data<std::byte>() + slot_ * bytes();
    copy(kept, first_ ? own_.data<std::byte>() + context.step * bytes() : traffic_.activations_in);
    if (!last_) copy(traffic_.activations_out, kept);
  }
  void backward(Vector&, bool, const BackwardHooks&) override {}
  void backward(std::int64_t i) {
    const std::byte* from = last_ ? kept_.data<std::byte>() + slot_ * bytes() : traffic_.gradients_in;
    copy(first_ ? back_.data<std::byte>() + i * bytes() : traffic_.gradients_out, from);
  }
  LossSums take_sums() override { return {}; }
  std::vector<float> logits(std::int64_t, std::int64_t) const override { return {}; }

  void write_own(int step) {
    std::vector<float> values(kMicroBatches * kCount);
    for (std::int64_t m = 0; m < kMicroBatches; ++m)
      for (std::int64_t i = 0; i < kCount; ++i) values[static_cast<std::size_t>(m * kCount + i)] = value(i, m, step);
    device_.copy(own_.data(), values.data(), own_.bytes(), CopyKind::to_device, device_.compute_stream());
  }
  std::vector<float> back(const std::function<void()>& poll) {
    std::vector<float> values(kMicroBatches * kCount);
    const Event end = device_.make_event();
    device_.record(end, device_.compute_stream());
    device_.synchronize(end, poll);
    device_.copy(values.data(), back_.data(), back_.bytes(), CopyKind::to_host, device_.compute_stream());
    device_.record(end, device_.compute_stream());
    device_.synchronize(end, poll);
    return values;
  }

 private:
  void copy(void* to, const void* from) {
    device_.copy(to, from, bytes(), CopyKind::on_device, device_.compute_stream());
  }
  Device& device_;
  bool first_, last_;
  int slot_ = 0;
  PartTraffic traffic_;
  DeviceMemory own_, back_, kept_;
};

class GpuRanksLinks : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (session().size() < 2) GTEST_SKIP() << "needs two ranks";
    if (GetParam() == "nccl" && !on_host_device() && visible_devices() < session().node_size() &&
        !nccl_may_share_devices())
      GTEST_SKIP() << "several ranks on one GPU, and NCCL_HOSTID is not set";
    // In this order of the host device, its other streams go on while one of them waits for another rank.
    if (on_host_device())
      host_device_ = std::make_unique<HostDevice>(HostDeviceOptions{.order = {RunOrder::Kind::latest, 0}});
    const StageDevices devices{.sums = {}, .links = [this](Links& host, int rank, std::vector<Lane> lanes) {
                                 return make_links_of_test(host, rank, std::move(lanes));
                               }};
    ranks_ = std::make_unique<StageRanks>(session().job(), session().size(), 1 << 17, SumChoice{}, devices);
  }
  void TearDown() override { ranks_.reset(); }
  Device& device() { return host_device_ ? static_cast<Device&>(*host_device_) : gpu(); }

  std::unique_ptr<Links> make_links_of_test(Links& host, int rank, std::vector<Lane> lanes) {
    if (GetParam() != "nccl") return make_staged_links(device(), host);
    auto lane = lanes.begin();
    const auto api = [&]() -> const NcclApi& {
      if (!host_device_) return nccl_api();
      auto peer = std::make_unique<MpiPeer>(lane->from == rank ? lane->to : lane->from, lane->tag);
      ++lane;
      return fakes_.emplace_back(std::make_unique<FakeNccl>(*host_device_, std::move(peer)))->api();
    };
    return make_nccl_links(api, device(), host, {.rank = rank, .lanes = lanes, .timeout_seconds = 30});
  }

  std::unique_ptr<HostDevice> host_device_;
  std::vector<std::unique_ptr<FakeNccl>> fakes_;
  std::unique_ptr<StageRanks> ranks_;
};

TEST_P(GpuRanksLinks, MicroBatchesGoThroughAllStagesAndComeBack) {
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    const std::int64_t slots = stage_slots(schedule, ranks_->stage(), ranks_->stages(), kMicroBatches);
    Relay relay(device(), ranks_->is_first(), ranks_->is_last(), slots);
    const auto order = make_pass_order(ranks_.get(), relay, schedule, slots);
    for (int step = 0; step < 4; ++step) {
      if (ranks_->is_first()) relay.write_own(step);
      order->run(kMicroBatches, {.input = [](std::int64_t) {},
                                 .forward = [&](std::int64_t i) { relay.forward({.step = i}); },
                                 .backward = [&](std::int64_t i) { relay.backward(i); },
                                 .waits = [] {}});
      const std::vector<float> back = relay.back([&] { ranks_->poll(); });
      std::int64_t wrong = 0;
      for (std::int64_t m = 0; m < kMicroBatches && ranks_->is_first(); ++m)
        for (std::int64_t i = 0; i < kCount; ++i)
          wrong += back[static_cast<std::size_t>(m * kCount + i)] != value(i, m, step);
      EXPECT_EQ(wrong, 0) << schedule << ", step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, GpuRanksLinks, testing::Values("nccl", "host_memory"),
                         [](const auto& information) { return information.param; });

}  // namespace
}  // namespace ringtrain::cuda
