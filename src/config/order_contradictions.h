// Checks for keys that communication.order: fixed (the same bits on any number of ranks) does not support.
#pragma once

#include <optional>

#include "config/contradictions.h"

namespace ringtrain {

std::optional<Contradiction> find_order_contradiction(const Experiment& experiment);

}  // namespace ringtrain
