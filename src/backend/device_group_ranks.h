// The ranks on which a group of batch norm lies, where they compute on devices.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/group_ranks.h"

namespace ringtrain {

// Exchanges in host memory are those of `host`.
class DeviceGroupRanks : public GroupRanks {
 public:
  explicit DeviceGroupRanks(std::unique_ptr<GroupRanks> host) : host_(std::move(host)) {}
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  void gather(std::span<double> parts, const std::function<void()>& poll) override { host_->gather(parts, poll); }
  // `parts`: [size][n] in the device's memory. This rank's own are there when `stream` (a device's stream) comes to it;
  // what the stream is given afterwards finds all. Collective. Not within a capture. Throws what has gone wrong on
  // another rank.
  virtual void gather_on_device(std::span<float> parts, std::uintptr_t stream) = 0;

 protected:
  std::unique_ptr<GroupRanks> host_;
};

}  // namespace ringtrain
