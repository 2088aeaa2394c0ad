// The exception of this program. It says what went wrong, where in the code, and what the user can do.
//
// This folder has small tools that know nothing of training: errors and log lines, files that are replaced atomically,
// checksums, random numbers, UTF-8, signals, shared memory and tables for the terminal. Nearly every file of the
// program uses Error from this header and cat() from cat.h. Begin reading here, then in random.h and files.h.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>

#include "base/cat.h"

namespace ringtrain {

// `what` is one clear sentence: the file, line or record, what was found, and what was expected. `hint` says what to
// do. Any code may throw it. If nothing else catches it, main() ends all ranks with a non-zero exit code.
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

// Returns the place where the error was thrown, for example "src/config/reader.cpp:81". "" for exceptions of other
// libraries.
inline std::string thrown_at(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  return own == nullptr ? "" : cat(own->where().file_name(), ":", own->where().line());
}

}  // namespace ringtrain
