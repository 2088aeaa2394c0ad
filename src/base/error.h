// Errors carry what went wrong, where in the code, and what the user can do about it.
#pragma once

#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>

namespace ringtrain {

// Joins its arguments by operator<< into one string.
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// One clear sentence (file, line or record; what was found; what was expected) and a hint (what to do).
// Thrown anywhere, caught once in main(), which ends all ranks with a non-zero exit code.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what, std::string hint = "",
                 std::source_location where = std::source_location::current())
      : std::runtime_error(what), hint_(std::move(hint)), where_(where) {}
  const std::string& hint() const { return hint_; }
  const std::source_location& where() const { return where_; }

 private:
  std::string hint_;
  std::source_location where_;
};

// "src/config/reader.cpp:81", where the error was thrown; "" for exceptions of other libraries.
inline std::string thrown_at(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  return own == nullptr ? "" : cat(own->where().file_name(), ":", own->where().line());
}

}  // namespace ringtrain
