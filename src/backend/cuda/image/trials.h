// What a fusion site's ways are timed on: their operations and kernels one after another, on scratch memory of full
// size.
#pragma once

#include <functional>
#include <vector>

#include "backend/cuda/image/layer.h"
#include "backend/cuda/program/base.h"

namespace ringtrain::cuda {

struct TrialPart {
  std::int64_t bytes = 0;  // of scratch memory
  std::function<void(Device&, Stream, char* scratch)> run;
};

// An operation over the whole micro-batch, in as many launches as that takes.
TrialPart operation_trial(const ImageContext& context, const DnnOperation& operation);
// The kernels of a norm over a value of x's shape.
TrialPart norm_sums_trial(const ImageContext& context, const Value& x);
TrialPart norm_apply_trial(const ImageContext& context, const Value& x, bool mask);
TrialPart norm_backward_sums_trial(const ImageContext& context, const Value& x);
TrialPart add_trial(const ImageContext& context, const Value& x);

// The parts are made, and scratch memory is taken, when the trial first runs.
std::function<void(Device&, Stream)> trial(std::function<std::vector<TrialPart>()> make_parts);

}  // namespace ringtrain::cuda
