// Updater runs an optimizer's step on the device. A step has these parts: the norm of the gradient, the loss scale,
// clipping, trust ratios, the update with the program's copies of the weights, and the running statistics. An overflow
// in the gradient skips the update. One small copy at the end tells the host the result. The host waits for that copy
// in finish(), at a time of its choice.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/program/base.h"
#include "backend/cuda/program/vector_operations.h"
#include "backend/vector_operations.h"

namespace ringtrain::cuda {

// Completes squared norms when each rank holds only parts of tensors. The norms of a rank's parts become norms of whole
// tensors by adding the parts of the other ranks. The host computes the sums, so each call waits for the device once.
class CompletedNorms {
 public:
  // `count` is the number of this rank's parts; it may be 0.
  CompletedNorms(Device& device, std::function<void()> poll, std::int64_t count);
  // `norms` are the norms of this rank's parts, measured in the program's stream; null when the rank has no part.
  // `complete` is Update::complete_norms.
  void complete(RangeNorms* norms, const std::function<double(std::span<double>)>& complete);
  const double* total() const { return norms_.data<const double>(); }      // one number, on the device
  const double* norms() const { return norms_.data<const double>() + 1; }  // [count], on the device
  std::int64_t bytes() const { return norms_.bytes(); }

 private:
  std::function<void()> poll_;
  std::vector<double> host_;  // [1 + count]: the total comes first
  DeviceMemory norms_;
  UploadRing<double> ring_;
};

// MuonDirections does Muon's work before an update on a device. It updates the momentum, makes the matrices orthogonal
// and gathers the directions from the other ranks.
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

// Computes the trust ratios of LARS and LAMB on a device, before the update. The kernels are in
// kernels/update.cuh.
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
