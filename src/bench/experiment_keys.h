// What makes a measured step that of an experiment, whatever its batch and its ranks.
#pragma once

#include <string>

#include "config/experiment.h"

namespace ringtrain {

// "precision=fp32 model.kind=resnet ...": keys and values.
std::string model_keys(const Experiment& experiment);

}  // namespace ringtrain
