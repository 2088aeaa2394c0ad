// Starts another program and watches it.
#pragma once

#include <sys/types.h>

#include <charconv>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ringtrain {

// A program in a process group of its own, so that Ctrl-C at the terminal does not reach it. It reads nothing, and gets
// SIGTERM when the process that has started it ends for any reason. Only the main thread may make one, because the
// kernel sends that SIGTERM when the thread ends.
class ChildProcess {
 public:
  // `words` are the program, which is looked for in PATH, and its arguments. stdout and stderr are appended to
  // `output`. `environment` has the variables that are changed; an empty value removes a variable. Throws Error if the
  // program cannot be started.
  ChildProcess(const std::vector<std::string>& words, const std::string& output,
               const std::map<std::string, std::string>& environment);
  ~ChildProcess();  // a program that still runs gets SIGTERM, and its end is waited for
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Returns the exit code, or 128 plus the number of the signal that has ended the program. Returns nothing while the
  // program runs. Never blocks.
  std::optional<int> ended();
  void send(int signal_number);

 private:
  pid_t pid_ = -1;
  std::optional<int> code_;
};

// Runs a command of the shell. Returns what it has written to stdout; nothing if it cannot be started.
std::optional<std::string> output_of(const std::string& command);

// Returns whether a program of this name can be started. It is a path, or a name that is looked for in PATH.
bool can_start(const std::string& program);

// Returns the path of this program: RINGTRAIN_EXECUTABLE, which the start script of a bundle and a test set, or the
// running file.
std::string own_executable();

// Variables of the environment.

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
