// Refuses experiments that are no plain ring, for benchmarks and predictions of ranks that all do the same.
#pragma once

#include <string>

#include "config/experiment.h"

namespace ringtrain {

// Throws Error with the reason and with the overrides that make the experiment a ring, unless it is one already. `what`
// says what only a ring has: "bench step measures ...".
void refuse_other_kinds(const ParallelConfig& parallel, const std::string& what);

}  // namespace ringtrain
