// What cannot have the same bits on any number of ranks (communication.order: fixed).
#pragma once

#include <optional>

#include "config/contradictions.h"

namespace ringtrain {

std::optional<Contradiction> find_order_contradiction(const Experiment& experiment);

}  // namespace ringtrain
