// The words behind a command: options, switches, files and overrides.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "config/reader.h"

namespace ringtrain {

// Each question takes its words out, and experiment() comes last: it refuses options that nobody has asked for. An
// option has its value as "--name value" or "--name=value". Throws Error with a hint for what cannot be.
class CommandLine {
 public:
  CommandLine(int argc, char** argv);

  const std::string& command() const { return command_; }           // "train"
  const std::vector<std::string>& whole() const { return whole_; }  // as it was typed
  bool flag(const std::string& name);                               // whether it was there
  bool has(const std::string& name) const;                          // the same, and it stays
  std::string option(const std::string& name, const std::string& fallback);
  double number(const std::string& name, double fallback, double least);
  std::int64_t integer(const std::string& name, std::int64_t fallback, std::int64_t least);
  // "3/16": which of how many shares, 0 <= K <= N; {0, 0} without the option.
  std::pair<std::int64_t, std::int64_t> share(const std::string& name);
  std::vector<std::string> list(const std::string& name, const std::string& fallback);  // "a,b"
  // A file that will be written, "" when it is not wanted. `ending`: of its name, as ".h5".
  std::string output(const std::string& name, const std::string& ending);
  // The words at the beginning that are among these.
  std::vector<std::string> words(std::initializer_list<const char*> known);
  // The first word. `what`: what the command needs, for the message.
  std::string file(const std::string& what);
  // All that is left: one path and overrides. `what`: what the command needs, where it may be more than an experiment.
  ExperimentArguments experiment(const std::string& what = "an experiment file") const;
  ExperimentArguments experiment_if_any() const;  // the path may be missing

 private:
  template <class T>
  T take(std::size_t at, std::size_t count, T value);

  std::string command_;
  std::vector<std::string> whole_, rest_;
};

// Throws Error when the file that the option names does not end so.
void expect_ending(const std::string& option, const std::string& path, const std::string& ending);

}  // namespace ringtrain
