// Keys that earlier versions had. What a run has stored stays readable; in a user's file they are errors.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ringtrain {

struct RetiredKey {
  std::string_view key;                                             // "optimizer.decay_norm_and_bias"
  std::string_view now;                                             // the key in its place
  std::optional<std::string> (*value_now)(const std::string& old);  // as an override writes it; none: never written
  std::string_view hint;                                            // for users: what to write instead
};

// Null when the key was never retired.
const RetiredKey* find_retired_key(std::string_view key);

}  // namespace ringtrain
