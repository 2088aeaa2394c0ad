// Checks for keys of an experiment whose values are valid by themselves but contradict each other. Pairs of keys that
// exclude each other are rows of a table (exclusions.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/experiment.h"

namespace ringtrain {

struct Contradiction {
  std::vector<std::string_view> keys;  // the error names the place of the key that was set last
  std::string what, hint = {};
};

// Returns the first contradiction that can be found without a data set.
std::optional<Contradiction> find_contradiction(const Experiment& experiment);

// Returns what a user can do about a contradiction. This is the contradiction's own hint, if there is one. Otherwise
// the text lists the keys whose default would remove the contradiction, as in "Set learning_rate.warmup_epochs=0 or
// learning_rate.warmup_steps=0." Returns "" if no single default removes it.
std::string way_out(const Contradiction& contradiction, const Experiment& experiment);

inline constexpr const char* only_one = "only one of them";

// Returns a contradiction of two keys: "<key> is <value> but <other> is <value>, expected <what the first one needs>".
// If only one of them may be set, `expected` begins with `only_one`, and the text has "and" in place of "but". If
// `other_is` is given, it takes the place of the other's value.
Contradiction wrong_pair(const Experiment& experiment, std::string_view key, std::string_view other,
                         std::string_view expected, const std::string& hint = {}, std::string_view other_is = {});

}  // namespace ringtrain
