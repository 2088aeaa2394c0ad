// Checks everything about a data set that can be checked, and reports every fault, not only the first.
#pragma once

#include <string>
#include <vector>

namespace ringtrain {

struct Verification {
  std::vector<std::string> faults;   // one sentence each, with the file and the record or block
  std::vector<std::string> summary;  // what the data set holds
};

// `target`: one file (.h5), one split's prefix ("data/pets-train"), or the prefix of all splits ("data/pets").
Verification verify_dataset(const std::string& target);

}  // namespace ringtrain
