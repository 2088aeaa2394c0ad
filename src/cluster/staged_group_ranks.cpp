#include "cluster/staged_group_ranks.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace ringtrain {
namespace {

using cuda::CopyKind;

class StagedGroupRanks final : public DeviceGroupRanks {
 public:
  StagedGroupRanks(cuda::Device& device, std::unique_ptr<GroupRanks> host, std::function<void()> poll)
      : DeviceGroupRanks(std::move(host)), device_(device), poll_(std::move(poll)), here_(device.make_event()) {}
  ~StagedGroupRanks() override {
    if (staged_ != nullptr) device_.release_host(staged_);
  }
  StagedGroupRanks(const StagedGroupRanks&) = delete;
  StagedGroupRanks& operator=(const StagedGroupRanks&) = delete;

  void gather_on_device(std::span<float> parts, std::uintptr_t handle) override {
    const cuda::Stream stream{handle};
    const auto bytes = static_cast<std::int64_t>(parts.size_bytes()), part = bytes / size();
    grow(bytes, stream);
    const std::size_t length = parts.size() / static_cast<std::size_t>(size()),
                      own = static_cast<std::size_t>(rank()) * length;
    device_.copy(staged_ + own, parts.data() + own, part, CopyKind::to_host, stream);
    wait(stream);
    values_.resize(parts.size());
    std::copy_n(staged_ + own, length, values_.begin() + static_cast<std::ptrdiff_t>(own));
    host_->gather(values_, poll_);
    std::ranges::transform(values_, staged_, [](double value) { return static_cast<float>(value); });
    device_.copy(parts.data(), staged_, bytes, CopyKind::to_device, stream);
  }

 private:
  void wait(cuda::Stream stream) {
    device_.record(here_, stream);
    device_.synchronize(here_, poll_);
  }
  void grow(std::int64_t bytes, cuda::Stream stream) {
    if (bytes <= bytes_) return;
    wait(stream);  // the previous exchange may still read staged_
    if (staged_ != nullptr) device_.release_host(std::exchange(staged_, nullptr));
    staged_ = static_cast<float*>(device_.allocate_host(bytes));
    bytes_ = bytes;
  }

  cuda::Device& device_;
  std::function<void()> poll_;
  cuda::Event here_;
  float* staged_ = nullptr;  // page-locked
  std::int64_t bytes_ = 0;
  std::vector<double> values_;
};

}  // namespace

std::unique_ptr<DeviceGroupRanks> make_staged_group_ranks(cuda::Device& device, std::unique_ptr<GroupRanks> host,
                                                          std::function<void()> poll) {
  return std::make_unique<StagedGroupRanks>(device, std::move(host), std::move(poll));
}

}  // namespace ringtrain
