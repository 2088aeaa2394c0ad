// Computes the trust ratios of LARS and LAMB on a device, before the update. The kernels are in
// kernels/trust_ratios.cuh.
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
  // Queues the work. `gradient_norms` (of whole tensors), `rule` and `scalars` are addresses on the device. For LAMB
  // the call also updates the moments, which are `state`. When ranks share the tensors, the call is collective and the
  // host waits for the device. Otherwise the host does not wait.
  void queue(const Update& update, const double* gradient_norms, const UpdateRule* rule, const UpdateScalars* scalars,
             const Vector& weights, const Vector& gradients, std::span<const std::unique_ptr<Vector>> state);
  const float* data() const { return ratios_.data<float>(); }  // one per range, on the device
  // Queues the copy to the host. values() returns the ratios after the device has done the copy.
  void fetch();
  std::vector<float> values() const { return {host_.data(), host_.data() + count_}; }
  std::int64_t bytes() const;

 private:
  Device& device_;
  std::function<void()> poll_;
  std::vector<ElementRange> ranges_;
  int count_;
  std::shared_ptr<std::int64_t> norm_bytes_;
  DeviceMemory table_, ratios_;  // TrustRange[count_], float[count_]
  HostMemory<float> host_;
  struct Norms {
    std::unique_ptr<DeviceRangeNorms> parts;    // null when this rank has no range
    std::unique_ptr<CompletedNorms> completed;  // null when this rank has whole tensors
    const double* data() const { return completed ? completed->norms() : parts->data(); }
  };
  void make(Norms& norms) const;
  void complete(Norms& norms, const Update& update) const;

  Norms weights_, directions_;  // directions_ is for LAMB
};

}  // namespace ringtrain::cuda
