// Completes squared norms when each rank holds only parts of tensors. The norms of a rank's parts become norms of whole
// tensors by adding the parts of the other ranks. The host computes the sums, so each call waits for the device once.
#pragma once

#include <functional>
#include <span>

#include "backend/cuda/program/base.h"
#include "backend/range_norms.h"

namespace ringtrain::cuda {

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

}  // namespace ringtrain::cuda
