// Keys of an experiment that are right by themselves and contradict each other.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/experiment.h"

namespace ringtrain {

struct Contradiction {
  std::vector<std::string_view> keys;  // reported at the one given last
  std::string what, hint = {};
};

// The first one that needs no data set to be seen.
std::optional<Contradiction> find_contradiction(const Experiment& experiment);

}  // namespace ringtrain
