// Keys of earlier versions. Files that a run has stored can still be read. In a user's file, a retired key is an error.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ringtrain {

struct RetiredKey {
  std::string_view key;                                             // "optimizer.decay_norm_and_bias"
  std::string_view now;                                             // the key that has replaced it
  std::optional<std::string> (*value_now)(const std::string& old);  // value of `now`; none: no version wrote `old`
  std::string_view hint;                                            // tells users what to write instead
};

// Returns null if the key was never retired.
const RetiredKey* find_retired_key(std::string_view key);

}  // namespace ringtrain
