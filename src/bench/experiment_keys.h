// What benchmarks and predictions ask of an experiment's keys: those that decide the time of a pass, and a plain ring.
#pragma once

#include <string>

#include "config/experiment.h"

namespace ringtrain {

// Returns the keys on which the time of a pass depends, apart from the batch and the number of ranks, with their
// values: "precision=fp32 model.kind=resnet ...".
std::string model_keys(const Experiment& experiment);

// Throws Error unless the experiment is a ring, whose ranks all do the same. The error has the reason, and the
// overrides that make the experiment a ring. `what` begins the message: "bench step measures steps of a ring".
void refuse_other_kinds(const ParallelConfig& parallel, const std::string& what);

}  // namespace ringtrain
