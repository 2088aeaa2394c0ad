// What parameter servers with ranks of their own cannot do.
#pragma once

#include <optional>

#include "config/contradictions.h"

namespace ringtrain {

std::optional<Contradiction> find_server_contradiction(const Experiment& experiment);

}  // namespace ringtrain
