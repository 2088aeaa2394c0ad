// The ranks that share a group of batch norm and compute on devices.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/group_ranks.h"

namespace ringtrain {

// `host` does the exchanges in host memory.
class DeviceGroupRanks : public GroupRanks {
 public:
  explicit DeviceGroupRanks(std::unique_ptr<GroupRanks> host) : host_(std::move(host)) {}
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  void gather(std::span<double> parts, const std::function<void()>& poll) override { host_->gather(parts, poll); }
  // `parts` is [size][n] in the device's memory. Earlier work in `stream` (a stream of the device) has filled this
  // rank's own part. Later work in the stream finds all parts. Collective. It must not be captured. Throws the error of
  // another rank.
  virtual void gather_on_device(std::span<float> parts, std::uintptr_t stream) = 0;

 protected:
  std::unique_ptr<GroupRanks> host_;
};

}  // namespace ringtrain
