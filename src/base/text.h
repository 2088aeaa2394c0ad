// Text that users and files hold: numbers, fields, misspelt words, paths, and commands for a shell or for Python.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace ringtrain {

// Sets `number` to the number that the text is, as std::from_chars reads it. Returns false if the text is anything
// else, such as a number with blanks or with a plus sign, or one that its type cannot hold; `number` may have changed.
template <class Number>
bool read_number(std::string_view text, Number& number) {
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  return error == std::errc() && end == last;
}

// Returns the shortest digits that read back as the same number. Very small and very large numbers have an exponent.
inline std::string shortest(double value) {
  char text[64];
  const bool plain = value == 0 || (std::abs(value) >= 1e-5 && std::abs(value) < 1e15);
  const auto end = plain ? std::to_chars(text, text + sizeof text, value, std::chars_format::fixed)
                         : std::to_chars(text, text + sizeof text, value);
  return {text, end.ptr};
}

inline bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Lines of fields, with a separator between them.

// Returns the parts of a text between the separators, empty ones too. There are at most `most` parts: the last one has
// the rest of the text.
inline std::vector<std::string> split(const std::string& text, char separator, std::size_t most = std::string::npos) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (parts.size() + 1 < most) {
    const std::size_t end = text.find(separator, begin);
    if (end == std::string::npos) break;
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

// Returns the text with blanks in place of tabs and line ends.
inline std::string in_one_field(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == '\t' || c == '\n' || c == '\r'; }, ' ');
  return text;
}

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
