// What an experiment may ask for and this version cannot do.
#pragma once

#include <optional>

#include "config/contradictions.h"

namespace ringtrain {

std::optional<Contradiction> find_not_built(const Experiment& experiment);

}  // namespace ringtrain
