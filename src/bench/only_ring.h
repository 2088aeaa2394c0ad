// Refuses experiments that are no plain ring, for benchmarks and predictions of ranks that all do the same.
#pragma once

#include <string>

#include "config/experiment.h"

namespace ringtrain {

// Throws Error unless the experiment is a ring. The error has the reason, and the overrides that make the experiment a
// ring. `what` begins the message: "bench step measures steps of a ring".
void refuse_other_kinds(const ParallelConfig& parallel, const std::string& what);

}  // namespace ringtrain
