// MuonDirections does Muon's work before an update on a device. It updates the momentum, makes the matrices orthogonal
// and gathers the directions from the other ranks.
#pragma once

#include <functional>
#include <span>

#include "backend/backend.h"
#include "backend/cuda/program/base.h"

namespace ringtrain::cuda {

class MuonDirections {
 public:
  MuonDirections(Device& device, const std::function<void()>& poll, std::span<const UpdateRange> ranges);
  // Queues the work. `rule` and `scalars` are addresses on the device. `momentum` is the optimizer's first state
  // vector.
  void queue(const Update& update, const UpdateRule* rule, const UpdateScalars* scalars, const Vector& gradients,
             Vector& momentum);
  std::int64_t bytes() const { return ranges_.bytes() + places_.bytes(); }

 private:
  Device& device_;
  DeviceMemory ranges_, places_;  // NormRange[count_], std::int64_t[count_]
  int count_ = 0;
  std::int64_t blocks_ = 0;
};

}  // namespace ringtrain::cuda
