// The names of a model's tensors outside of the program: of arrays in checkpoints, and in messages about the copies of
// the ranks.
#pragma once

#include <string>
#include <string_view>

#include "base/cat.h"
#include "nn/parameters.h"

namespace ringtrain {

inline constexpr std::string_view weights_prefix = "weights/", states_prefix = "optimizer/";

// Returns "weights/conv1.weight".
inline std::string weight_array(const Parameter& tensor) {
  return cat(weights_prefix, tensor.name);
}
// Returns "optimizer/exp_avg/conv1.weight". `state` is one of Optimizer::state_names().
inline std::string state_array(std::string_view state, const Parameter& tensor) {
  return cat(states_prefix, state, "/", tensor.name);
}
inline bool is_weight_array(std::string_view name) {
  return name.starts_with(weights_prefix);
}
// Returns whether the array is one of the optimizer's for this tensor.
inline bool is_state_array(std::string_view name, const Parameter& tensor) {
  return name.starts_with(states_prefix) && name.ends_with("/" + tensor.name);
}

}  // namespace ringtrain
