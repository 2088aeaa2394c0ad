// Checks for keys that a kind of parallel training does not support.
#pragma once

#include <optional>

#include "config/contradictions.h"

namespace ringtrain {

// Checks for keys that communication.order: fixed (the same bits on any number of ranks) does not support.
std::optional<Contradiction> find_order_contradiction(const Experiment& experiment);

// Checks for keys that parameter servers and sharded state do not support.
std::optional<Contradiction> find_server_contradiction(const Experiment& experiment);

}  // namespace ringtrain
