// Makes the name of a trial.
#pragma once

#include <string>
#include <vector>

#include "study/trial_keys.h"

namespace ringtrain {

// `taken` has the choice of each axis, in the order of the axes. The name has parts of the form key-value or
// group-case, joined by '_'. There is a part for the ranks (if the study varies them and there is more than one), one
// for every varied key whose value is not the experiment's (in the schema's order), one for every group whose case
// changes a value, and one for the seed. A key is written without its section if no other section has a key of that
// name. A value with characters that a folder's name cannot have ends in a hash. So does a name that is too long. If
// nothing differs from the experiment, the name is "unchanged".
std::string trial_name(const Study& study, const std::vector<const Choice*>& taken,
                       const std::vector<Setting>& drawn_and_seed, const TrialKeys& keys);

}  // namespace ringtrain
