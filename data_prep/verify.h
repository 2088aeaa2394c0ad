// Checks everything about a data set that can be checked. Reports every fault, not only the first.
#pragma once

#include <string>

#include "data_prep/common/faults.h"

namespace ringtrain {

// `target` is one file (.h5), the prefix of one split ("data/pets-train"), or the prefix of all splits ("data/pets").
Verification verify_dataset(const std::string& target);

}  // namespace ringtrain
