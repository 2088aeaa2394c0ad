// An optimizer's step on the device: norm of the gradient, loss scale, clipping, the overflow that skips it, trust
// ratios, the update with the program's copies of the weights, the running statistics. The host is told by one small
// copy behind them, which it waits for when it likes.
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
  // `program`: null, or whose copies follow the weights.
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
  Event copied_, finished_;               // the places; the last update
  DeviceMemory scalars_, rule_, places_;  // UpdateScalars, UpdateRule, UpdatePlace[]
  UploadRing<UpdateRule> rule_ring_;
  HostMemory<UpdateScalars> host_scalars_;
  std::unique_ptr<TrustRatios> trust_;    // of known_ranges_; null: not needed so far
  std::unique_ptr<MuonDirections> muon_;  // the same
  std::unique_ptr<CompletedNorms> completed_;  // the same: of the gradient, where ranks share the tensors
  bool reports_trust_ = false;            // the last update
  // What lies on the device. Copies are known by what is shared: a program's address may come again.
  std::vector<UpdateRange> known_ranges_;
  std::shared_ptr<const std::vector<WeightCopy>> known_copies_;
  std::int64_t place_count_ = 0, place_blocks_ = 0;
};

}  // namespace ringtrain::cuda
