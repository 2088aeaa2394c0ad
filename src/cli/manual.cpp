// The man page of a program. The macros are those of man(7).
#include <CLI/CLI.hpp>
#include <sstream>

#include "base/error.h"
#include "base/utf8.h"
#include "base/version.h"
#include "cli/command_line.h"

namespace ringtrain {
namespace {

constexpr std::size_t line_width = 78;  // letters per line of the troff source; man wraps lines again for its readers

// Escapes the text: no letter acts as a macro or an escape, and hyphens can be searched for and copied.
std::string troff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n'))
      out += cat("\\&", c);
    else
      out += c;
  }
  return out;
}

std::string quoted(const std::string& text) {
  return cat("\"", troff(text), "\"");
}

// Writes paragraphs. Lines that begin with a space are shown unchanged.
std::string paragraphs(const std::string& text) {
  std::string out;
  std::istringstream lines(wrapped(text, 0, line_width));
  bool literal = false;
  for (std::string line; std::getline(lines, line);) {
    const bool as_it_is = line.starts_with(" ");
    if (as_it_is != literal) out += as_it_is ? ".PP\n.nf\n" : ".fi\n";
    literal = as_it_is;
    if (line.empty())
      out += ".PP\n";
    else
      out += troff(line) + "\n";
  }
  return out + (literal ? ".fi\n" : "");
}

}  // namespace

std::string CommandLine::manual_page() const {
  std::string page = cat(".TH ", upper_case(name_), " 1 \"\" ", quoted(cat("ringtrain ", build_commit())),
                         "\n.SH NAME\n", troff(name_), " \\- ", troff(summary_), "\n.SH SYNOPSIS\n");
  for (const auto& command : commands_) {
    const std::string name = command->get_name(), takes = synopsis(*command).substr(name.size());
    page += cat(".B ", troff(name_), " ", troff(name), "\n", takes.empty() ? "" : paragraphs(takes.substr(1)), ".br\n");
  }
  page += ".SH COMMANDS\n";
  for (const auto& command : commands_) {
    page += cat(".SS ", quoted(cat(command->get_name(), " ", operands_of(*command))), "\n",
                paragraphs(command->get_description()));
    for (const CLI::Option* option : options_of(*command))
      page += cat(".TP\n.B ", troff(shown(*option)), "\n", paragraphs(option->get_description()));
  }
  page += ".SH OPTIONS\n";
  for (const Answer& answer : answers_) page += cat(".TP\n.B ", troff(answer.flag), "\n", paragraphs(answer.help));
  for (const Section& section : sections_)
    page += cat(".SH ", quoted(upper_case(section.title)), "\n", paragraphs(section.text));
  return page;
}

}  // namespace ringtrain
