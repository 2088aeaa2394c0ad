// Lists of names in messages.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/cat.h"

namespace ringtrain {

// Returns "a, b and 5 more": at most `most` names, and how many others there are.
inline std::string first_names(const std::vector<std::string>& names, std::size_t most = 10) {
  std::string text;
  for (std::size_t i = 0; i < std::min(most, names.size()); ++i) text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > most ? cat(text, " and ", names.size() - most, " more") : text;
}

}  // namespace ringtrain
