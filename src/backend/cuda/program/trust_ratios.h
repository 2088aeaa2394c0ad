// The trust ratios of an update on a device: queued before it, without the host. Kernels: kernels/trust_ratios.cuh.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/program/completed_norms.h"
#include "backend/cuda/program/range_norms.h"

namespace ringtrain::cuda {

class TrustRatios {
 public:
  TrustRatios(Device& device, std::function<void()> poll, std::span<const UpdateRange> ranges);
  // Queues them; `gradient_norms` (of whole tensors), `rule` and `scalars` lie on the device. Moves LAMB's moments, which
  // are its `state`. Where ranks share the tensors it is collective, and the host waits for the device.
  void queue(const Update& update, const double* gradient_norms, const UpdateRule* rule, const UpdateScalars* scalars, const Vector& weights,
             const Vector& gradients, std::span<const std::unique_ptr<Vector>> state);
  const float* data() const { return ratios_.data<float>(); }  // one per range, on the device
  // Queues the copy to the host, which values() returns once the device has done it.
  void fetch();
  std::vector<float> values() const { return {host_.data(), host_.data() + count_}; }
  std::int64_t bytes() const;

 private:
  Device& device_;
  std::function<void()> poll_;
  std::vector<ElementRange> ranges_;
  int count_;
  std::shared_ptr<std::int64_t> norm_bytes_;
  DeviceMemory table_, ratios_;  // TrustRange, float
  HostMemory<float> host_;
  struct Norms {
    std::unique_ptr<DeviceRangeNorms> parts;    // null: this rank has no range
    std::unique_ptr<CompletedNorms> completed;  // null: it has whole tensors
    const double* data() const { return completed ? completed->norms() : parts->data(); }
  };
  void make(Norms& norms) const;
  void complete(Norms& norms, const Update& update) const;

  Norms weights_, directions_;  // directions: of LAMB
};

}  // namespace ringtrain::cuda
