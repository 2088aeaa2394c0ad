// Checks for keys that parameter servers and sharded state do not support.
#pragma once

#include <optional>

#include "config/contradictions.h"

namespace ringtrain {

std::optional<Contradiction> find_server_contradiction(const Experiment& experiment);

}  // namespace ringtrain
