// Norms of the parts of tensors that a rank updates, completed to those of whole tensors with the parts of the other
// ranks. The host makes the sum: it waits for the device once for each call.
#pragma once

#include <functional>
#include <span>

#include "backend/cuda/program/base.h"
#include "backend/range_norms.h"

namespace ringtrain::cuda {

class CompletedNorms {
 public:
  // Of `count` parts, perhaps none.
  CompletedNorms(Device& device, std::function<void()> poll, std::int64_t count);
  // `norms`: of this rank's parts, in the program's stream; null: it has none. `complete`: Update::complete_norms.
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

}  // namespace ringtrain::cuda
