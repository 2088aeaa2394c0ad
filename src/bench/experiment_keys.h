// The keys of an experiment on which the time of a pass depends, apart from the batch and the number of ranks.
#pragma once

#include <string>

#include "config/experiment.h"

namespace ringtrain {

// Returns the keys with their values: "precision=fp32 model.kind=resnet ...".
std::string model_keys(const Experiment& experiment);

}  // namespace ringtrain
