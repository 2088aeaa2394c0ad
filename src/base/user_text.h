// Text that users write or copy: misspelt words, paths, and commands for a shell or for Python.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ringtrain {

// Changes ASCII letters only, so that the result does not depend on the language of the system.
std::string ascii_lower(std::string text);

// Guesses which known word a user meant by a misspelt one.

// Returns the number of edits that turn `a` into `b`. An edit inserts, drops or replaces a letter, or swaps two
// neighbours.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Returns a hint such as "; did you mean 'sqrt'?" for an unknown word, or "" if no known word is near.
std::string nearest_word(std::string_view word, std::span<const std::string_view> known);

// Paths as users write them in experiments and options: ~ stands for the home folder, and $NAME for an environment
// variable.

// Returns the path with a leading ~/ replaced by $HOME/, and with $NAME or ${NAME} replaced by the variable's value. A
// $ without a name stays. Throws Error for a variable that is not set or is empty, and for ~user. Its message begins
// with `what`, the name of the key or option that has the path.
std::string expand_path(std::string_view path, std::string_view what);

// Writes commands so that a shell or Python reads the same words again.

// Returns the words with spaces between them. A word that a shell would change or split is quoted: learning_rate.base=1
// stays, and [2, 3] becomes '[2, 3]'.
std::string shell_command(const std::vector<std::string>& words);
// Returns the text as Python writes it: 'it\'s'.
std::string python_text(std::string_view text);

}  // namespace ringtrain
