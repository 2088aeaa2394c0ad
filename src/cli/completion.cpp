// Completion in bash: commands, options, the words that an option or operand accepts, and keys of an experiment.
#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/error.h"
#include "cli/command_line.h"

namespace ringtrain {
namespace {

// Returns the words that the first operand of a form accepts: "fp32|fp16" becomes "fp32 fp16". Returns "" if the
// operand is not a list of words.
std::string choices(const std::string& form) {
  std::string first = form.substr(0, form.find(' '));
  if (first.find('|') == std::string::npos || first.find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ") != std::string::npos)
    return "";
  std::ranges::replace(first, '|', ' ');
  return first;
}

}  // namespace

std::string CommandLine::bash_completion() const {
  std::vector<std::string> starts;
  std::string options, values;
  for (const auto& command : commands_) {
    starts.push_back(command->get_name());
    std::vector<std::string> names = {"--help", "--verbose"};
    for (const CLI::Option* option : options_of(*command)) {
      names.push_back("--" + option->get_lnames()[0]);
      if (const std::string words = choices(option->get_type_name()); !words.empty())
        values += cat("    ", command->get_name(), ":", names.back(), ") words=\"", words, "\" ;;\n");
    }
    const std::string form = operands_of(*command);
    const bool keys = form.find("key.path=value") != std::string::npos;
    options += cat("    ", command->get_name(), ") options=\"", joined(names, " "), "\" first=\"", choices(form),
                   "\" operands=\"", choices(form), keys ? " $keys" : "", "\" ;;\n");
  }
  for (const Answer& answer : answers_) starts.push_back(answer.flag);
  std::string function = "_" + name_;
  std::ranges::replace(function, '-', '_');
  return cat(
      "# Completion of ", name_, " in bash; ", name_, " --bash-completion wrote it.\n", function,
      "() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} options=\"\" first=\"\" operands=\"\" "
      "words=\"\"\n"
      "  local keys=\"",
      joined(keys_, " "),
      "\"\n"
      "  case $command in\n",
      options,
      "  esac\n"
      "  case $command:${COMP_WORDS[COMP_CWORD - 1]} in\n",
      values,
      "  esac\n"
      "  if [ \"$COMP_CWORD\" = 1 ]; then\n"
      "    words=\"",
      joined(starts, " "),
      "\"\n"
      "  elif [ -z \"$words\" ]; then\n"
      "    case $word in\n"
      "      -*) words=$options ;;\n"
      "      ?*) words=$operands ;;\n"
      "      *) [ \"$COMP_CWORD\" != 2 ] || words=$first ;; # nothing typed yet: files, if there are no such words\n"
      "    esac\n"
      "  fi\n"
      "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
      "  case ${COMPREPLY[0]:-} in *=) compopt -o nospace 2> /dev/null ;; esac\n"
      "  return 0\n"
      "}\n"
      "complete -o default -F ",
      function, " ", name_, "\n");
}

}  // namespace ringtrain
