// Updater runs an optimizer's step on the device. A step has these parts: the norm of the gradient, the loss scale,
// clipping, trust ratios, the update with the program's copies of the weights, and the running statistics. An overflow
// in the gradient skips the update. One small copy at the end tells the host the result. The host waits for that copy
// in finish(), at a time of its choice.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "backend/cuda/program/base.h"
#include "backend/cuda/program/completed_norms.h"
#include "backend/cuda/program/muon_directions.h"
#include "backend/cuda/program/trust_ratios.h"
#include "backend/cuda/program/update_places.h"

namespace ringtrain::cuda {

class Updater {
 public:
  Updater(Device& device, std::function<void()> poll);
  // Queues a step. When `program` is not null, its copies of the weights are updated too.
  void start(const Update& update, const ProgramBase* program, Vector& weights, const Vector& gradients,
             std::span<const std::unique_ptr<Vector>> state);
  UpdateResult finish();
  std::int64_t bytes() const {
    return scalars_.bytes() + rule_.bytes() + places_.bytes() + (trust_ ? trust_->bytes() : 0) +
           (muon_ ? muon_->bytes() : 0) + (completed_ ? completed_->bytes() : 0);
  }

 private:
  void upload_places(std::span<const UpdateRange> ranges, const ProgramBase* program);
  void queue_scalars(const Update& update, const Vector& gradients);

  Device& device_;
  std::function<void()> poll_;
  Event copied_, finished_;               // copied_: the places are copied; finished_: the last update is done
  DeviceMemory scalars_, rule_, places_;  // UpdateScalars, UpdateRule, UpdatePlace[]
  UploadRing<UpdateRule> rule_ring_;
  HostMemory<UpdateScalars> host_scalars_;
  std::unique_ptr<TrustRatios> trust_;         // for known_ranges_; null until needed
  std::unique_ptr<MuonDirections> muon_;       // for known_ranges_; null until needed
  std::unique_ptr<CompletedNorms> completed_;  // norms of the gradient if ranks share tensors; else null
  bool reports_trust_ = false;                 // finish() returns the last update's trust ratios
  // The places of these ranges and copies are on the device now. Copies are compared by their shared pointer. The
  // address of a program would not do, because a later program may get the same address.
  std::vector<UpdateRange> known_ranges_;
  std::shared_ptr<const std::vector<WeightCopy>> known_copies_;
  std::int64_t place_count_ = 0, place_blocks_ = 0;
};

}  // namespace ringtrain::cuda
