// Makes the name of a trial.
#pragma once

#include <string>
#include <vector>

#include "study/trial_keys.h"

namespace ringtrain {

// `taken`: the choice of each axis, in their order. The name has a part for the ranks (where there are several), for
// every key whose value is not the experiment's, in the schema's order, for every group whose case changes anything,
// and for the seed: key-value or group-case, by '_'. Keys are named without their section where that says which it is.
// A value that is no folder's name, and a name that is too long, end in a hash. "unchanged": nothing differs.
std::string trial_name(const Study& study, const std::vector<const Choice*>& taken,
                       const std::vector<Setting>& drawn_and_seed, const TrialKeys& keys);

}  // namespace ringtrain
