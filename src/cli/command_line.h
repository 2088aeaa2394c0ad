// The command line of a program. Each command declares its options and operands once. The parser (CLI11), --help, the
// man page and completion in bash all use this declaration.
//
// main() makes a CommandLine and calls add() for every command. add() returns the CLI::App of the command, which gets
// its options from CLI11's own add_option() and add_flag(), and its operands from add_operands(). Then parse() reads
// the words and returns the command that was asked for. manual.cpp and completion.cpp write the man page and the
// completion script. The commands are declared in src/commands/command_table.cpp and in data_prep/main.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

// Files that declare options include <CLI/CLI.hpp>. It is large, and the others need no more than these names.
namespace CLI {
class App;
class Option;
class Validator;
}  // namespace CLI

namespace ringtrain {

class CommandLine {
 public:
  // `summary` says in a few words what the program is.
  CommandLine(std::string name, std::string summary);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // Adds a command and returns it, so that options and operands can be added. `about` consists of paragraphs with an
  // empty line between them. The list of commands shows its first sentence.
  CLI::App& add(const std::string& command, const std::string& about);
  // Adds an option that takes the place of a command ("--version") and prints a text.
  void add_answer(const std::string& flag, const std::string& help, std::function<std::string()> text);
  // Adds a section to the page that --help prints, and to the man page.
  void add_section(const std::string& title, const std::string& text);
  // Sets the words that completion offers for operands of the form "key.path=value".
  void complete_keys(std::vector<std::string> keys) { keys_ = std::move(keys); }

  // Reads the words after the program's name, at least one. In options whose value is a file or a prefix of files, a
  // leading ~ and environment variables are replaced (base/text.h). Returns null if the answer was printed and
  // there is no command to run. Throws Error for words that are not allowed.
  const CLI::App* parse(std::vector<std::string> words);

  std::string help() const;                         // help for the program
  std::string help(const CLI::App& command) const;  // help for one command
  std::string manual_page() const;                  // troff, with the macros of man(7)
  std::string bash_completion() const;              // a script that bash reads

 private:
  struct Answer {
    std::string flag, help;
    std::function<std::string()> text;
  };
  struct Section {
    std::string title, text;
  };
  [[noreturn]] void refuse(const CLI::App& command, const std::string& what) const;

  std::string name_, summary_;
  std::vector<std::unique_ptr<CLI::App>> commands_;
  std::vector<Answer> answers_;
  std::vector<Section> sections_;
  std::vector<std::string> keys_;
};

// Adds the operands of a command. `form` is how they are shown: "INPUT" or "FILE.h5 [key.path=value ...]".
void add_operands(CLI::App& command, std::vector<std::string>& words, const std::string& form);
// Shows an option without brackets in the synopsis. The command itself checks that it was given, because it can say
// more about what is missing than the parser.
void show_as_required(CLI::Option& option);
// Adds an option whose value is a list: "--name a,b".
void add_list(CLI::App& command, const std::string& name, std::vector<std::string>& values, const std::string& form,
              const std::string& help);

// These check the value of an option. Their messages say what was found and what was expected.
// The number of every option goes through one of the first two, because the parser wraps numbers that its type cannot
// hold. Products of a few counts up to `most_counted` fit into 64 bits.
inline constexpr std::uint64_t most_counted = 1'000'000'000'000'000, any_seed = UINT64_MAX;
inline constexpr std::uint64_t most_ranks = 1 << 24;
CLI::Validator whole_number(std::int64_t least, std::uint64_t most = most_counted);
CLI::Validator number(double least, double most = 9e15);
CLI::Validator one_of(std::vector<std::string> words);
CLI::Validator file_that_ends_in(const std::string& ending);

// These return parts of the declaration, for --help, the man page and completion.
std::vector<const CLI::Option*> options_of(const CLI::App& command);  // without operands and --help
std::string shown(const CLI::Option& option);                         // "--ranks N"
std::string synopsis(const CLI::App& command);                        // "plan EXPERIMENT.yaml ... [--ranks N]"
std::string operands_of(const CLI::App& command);                     // "EXPERIMENT.yaml [key.path=value ...]"
std::string first_sentence(const std::string& text);

// These two format text for a terminal. wrapped() wraps `text` into lines of at most `width` letters. Each line begins
// with `indent` spaces; the second and later lines of a paragraph begin with `hanging` more. Empty lines stay, and a
// line that begins with a space is not changed. The result ends with a newline.
std::string wrapped(const std::string& text, std::size_t indent, std::size_t width, std::size_t hanging = 0);

// entry() returns "  name   text". Texts begin after `name_width` letters. A longer name has a line of its own.
std::string entry(const std::string& name, const std::string& text, std::size_t name_width, std::size_t width);

}  // namespace ringtrain
