// Writes commands so that a shell reads the same words again.
#pragma once

#include <string>
#include <vector>

namespace ringtrain {

// Returns the words with spaces between them. A word that a shell would change or split is quoted: learning_rate.base=1
// stays, and [2, 3] becomes '[2, 3]'.
std::string shell_command(const std::vector<std::string>& words);

}  // namespace ringtrain
