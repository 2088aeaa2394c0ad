// Variables of the environment.
#pragma once

#include <charconv>
#include <cstdlib>
#include <string>

namespace ringtrain {

// Returns the value of a variable. "": it is not set, or empty.
inline std::string environment_text(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? text : "";
}

// Returns the number at the beginning of a variable. 0: it is not set, or does not begin with a number.
inline int environment_number(const char* name) {
  const std::string text = environment_text(name);
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace ringtrain
