// An optimizer's step on the device: norm of the gradient, loss scale, clipping, the overflow that skips it, the
// update, the running statistics. The host is told at the end, by one small copy.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "backend/cuda/program_base.h"

namespace ringtrain::cuda {

class Updater {
 public:
  Updater(Device& device, std::function<void()> poll);
  UpdateResult run(const Update& update, Vector& weights, const Vector& gradients,
                   std::span<const std::unique_ptr<Vector>> state);
  std::int64_t bytes() const { return scalars_.bytes() + rule_.bytes() + ranges_.bytes() + partial_.bytes(); }

 private:
  void upload_ranges(std::span<const UpdateRange> ranges);
  void measure(const Update& update, const Vector& gradients);

  Device& device_;
  std::function<void()> poll_;
  Event finished_;
  DeviceMemory scalars_, rule_, ranges_, partial_;  // UpdateScalars, UpdateRule, UpdateRange[], double[]
  UploadRing<UpdateRule> rule_ring_;
  HostMemory<UpdateScalars> host_scalars_;
  std::unique_ptr<UploadRing<UpdateRange>> range_ring_;
  std::vector<UpdateRange> known_ranges_;  // what lies on the device
  std::int64_t range_capacity_ = 0;
};

}  // namespace ringtrain::cuda
