// Finds the index of a data set for a plan, also on a machine without the data set.
#pragma once

#include <cstdint>
#include <string>

#include "config/experiment.h"
#include "data/dataset.h"

namespace ringtrain {

// Reads the headers of the data set's shards. If there are no shards, the result is the index that the experiment
// states (stated_index()), with a warning. So a run for a cluster can be planned on a laptop. Throws Error if the
// experiment does not state the index.
DatasetIndex planned_index(const Experiment& experiment, const std::string& prefix, std::int64_t samples);

}  // namespace ringtrain
