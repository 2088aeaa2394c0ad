// The table of keys whose values exclude each other.
#pragma once

#include <optional>

#include "config/contradictions.h"

namespace ringtrain {

// Returns the first row of the table that this experiment breaks. Its text is "<feature> is <value> but <key> is
// <value>, expected <what the feature needs>".
std::optional<Contradiction> find_exclusion(const Experiment& experiment);

}  // namespace ringtrain
