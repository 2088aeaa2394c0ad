#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace ringtrain {
namespace {

constexpr const char* operands_name = "words";
constexpr const char* required_group = "required";
constexpr std::size_t help_width = 100;

bool is_flag(const CLI::Option& option) {
  return option.get_items_expected_max() == 0;
}

// Returns whether this is an option (not an operand) whose value is a path, from the name that --help shows for it.
bool takes_path(const CLI::Option& option) {
  if (option.get_lnames().empty()) return false;
  const std::string form = option.get_type_name();
  if (form == "FILE,...") return false;  // add_list() replaces ~ in each path
  return form.starts_with("FILE") || form.starts_with("CHECKPOINT") || form == "PREFIX";
}

std::string nearest_of(const std::string& word, const std::vector<std::string>& known) {
  const std::vector<std::string_view> views(known.begin(), known.end());
  return nearest_word(word, views);
}

}  // namespace

CommandLine::~CommandLine() = default;

CommandLine::CommandLine(std::string name, std::string summary) : name_(std::move(name)), summary_(std::move(summary)) {
  add_answer("--help", "prints this page; after a command, what the command takes", [this] { return help(); });
  add_answer("--manual-page", "prints the man page", [this] { return manual_page(); });
  add_answer("--bash-completion", "prints a script for completion in bash", [this] { return bash_completion(); });
}

CLI::App& CommandLine::add(const std::string& command, const std::string& about) {
  commands_.push_back(std::make_unique<CLI::App>(about, command));
  commands_.back()->set_help_flag("-h,--help", "prints this page");
  return *commands_.back();
}

void CommandLine::add_answer(const std::string& flag, const std::string& help, std::function<std::string()> text) {
  answers_.push_back({flag, help, std::move(text)});
}

void CommandLine::add_section(const std::string& title, const std::string& text) {
  sections_.push_back({title, text});
}

void CommandLine::refuse(const CLI::App& command, const std::string& what) const {
  const std::string own = cat(name_, " ", command.get_name());
  throw Error(cat(own, ": ", what), cat(own, " --help"));
}

const CLI::App* CommandLine::parse(std::vector<std::string> words) {
  if (words[0] == "-h") words[0] = "--help";
  if (words[0] == "help") {
    words.erase(words.begin());
    words.push_back("--help");
  }
  for (const Answer& answer : answers_)
    if (words[0] == answer.flag) {
      std::fputs(answer.text().c_str(), stdout);
      return nullptr;
    }
  const auto found = std::ranges::find(commands_, words[0], [](const auto& each) { return each->get_name(); });
  if (found == commands_.end()) {
    std::vector<std::string> known;
    for (const auto& c : commands_) known.push_back(c->get_name());
    throw Error(
        cat("unknown command '", words[0], "'; expected one of ", joined(known, ", "), nearest_of(words[0], known)),
        cat(name_, " --help"));
  }
  CLI::App* const command = found->get();
  // A shell replaces ~ and $NAME in most words, but bash keeps --out=~/x as it is, and batch scripts may quote.
  for (CLI::Option* option : command->get_options())
    if (takes_path(*option))
      option->transform([option](const std::string& path) { return expand_path(path, shown(*option)); });
  std::reverse(words.begin(), words.end());  // CLI11 takes the last word of a vector first
  words.pop_back();
  try {
    command->parse(words);
    return command;
  } catch (const CLI::CallForHelp&) {
    std::fputs(help(*command).c_str(), stdout);
    return nullptr;
  } catch (const CLI::ExtrasError&) {
    const std::string word = command->remaining().front();
    std::vector<std::string> known;
    for (const CLI::Option* option : options_of(*command)) known.push_back("--" + option->get_lnames()[0]);
    if (word.starts_with("-"))
      refuse(*command, cat("unknown option ", word, nearest_of(word.substr(0, word.find('=')), known)));
    refuse(*command, cat("unexpected word '", word, "'"));
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string what = error.what();
    refuse(*command, cat(what.substr(0, what.find(':')), " must be given once, with one value"));
  } catch (const CLI::ParseError& error) {
    refuse(*command, error.what());
  }
}

std::string CommandLine::help() const {
  std::string text = cat(name_, ": ", summary_, "\n\n");
  std::size_t width = 0;
  for (const auto& command : commands_) width = std::max(width, command->get_name().size());
  for (const Answer& answer : answers_) width = std::max(width, answer.flag.size());
  for (const auto& command : commands_)
    text += entry(command->get_name(), first_sentence(command->get_description()), width, help_width);
  text += "\n";
  for (const Answer& answer : answers_) text += entry(answer.flag, answer.help, width, help_width);
  text += cat("\n", name_, " COMMAND --help says what a command takes.\n");
  for (const Section& section : sections_) text += cat("\n", section.title, "\n", wrapped(section.text, 2, help_width));
  return text;
}

std::string CommandLine::help(const CLI::App& command) const {
  std::string text = wrapped(cat(name_, " ", synopsis(command)), 0, help_width, 4);
  text += "\n" + wrapped(command.get_description(), 0, help_width);
  std::size_t width = 0;
  const std::vector<const CLI::Option*> options = options_of(command);
  for (const CLI::Option* option : options) width = std::max(width, std::min<std::size_t>(shown(*option).size(), 28));
  if (!options.empty()) text += "\n";
  for (const CLI::Option* option : options) text += entry(shown(*option), option->get_description(), width, help_width);
  return text;
}

void add_operands(CLI::App& command, std::vector<std::string>& words, const std::string& form) {
  command.add_option(operands_name, words)->type_name(form);
}

void show_as_required(CLI::Option& option) {
  option.group(required_group);
}

void add_list(CLI::App& command, const std::string& name, std::vector<std::string>& values, const std::string& form,
              const std::string& help) {
  const auto split = [&values, name, are_paths = form.starts_with("FILE")](const std::string& text) {
    values.clear();
    std::istringstream parts(text);
    for (std::string value; std::getline(parts, value, ',');)
      values.push_back(are_paths ? expand_path(value, name) : value);
  };
  command.add_option_function<std::string>(name, split, help)->type_name(form);
}

CLI::Validator whole_number(std::int64_t least, std::uint64_t most) {
  return CLI::Validator(
      [least, most](const std::string& text) -> std::string {
        std::uint64_t value = 0;
        // The parser reads 010 as 8.
        if (read_number(text, value) && text == cat(value) && std::cmp_greater_equal(value, least) && value <= most)
          return "";
        const bool is_large = !text.empty() && text[0] != '0' && std::ranges::all_of(text, is_digit);
        return cat("'", text, "', expected a whole number ",
                   is_large ? cat("from ", least, " to ", most) : cat("of at least ", least));
      },
      "");
}

CLI::Validator number(double least, double most) {
  return CLI::Validator(
      [least, most](const std::string& text) -> std::string {
        double value = 0;
        const bool is_number = CLI::detail::lexical_cast(text, value);
        if (is_number && value >= least && value <= most) return "";
        return cat("'", text, "', expected a number ",
                   is_number && value > most ? cat("from ", least, " to ", most) : cat("of at least ", least));
      },
      "");
}

CLI::Validator one_of(std::vector<std::string> words) {
  return CLI::Validator(
      [words = std::move(words)](const std::string& text) -> std::string {
        if (std::ranges::find(words, text) != words.end()) return "";
        return cat("'", text, "', expected ", joined(words, ", "), nearest_of(text, words));
      },
      "");
}

CLI::Validator file_that_ends_in(const std::string& ending) {
  return CLI::Validator(
      [ending](const std::string& text) -> std::string {
        if (text.ends_with(ending)) return "";
        return cat("'", text, "', expected a file that ends in ", ending, ", as ",
                   std::filesystem::path(text).replace_extension(ending).string());
      },
      "");
}

std::vector<const CLI::Option*> options_of(const CLI::App& command) {
  return command.get_options(
      [](const CLI::Option* option) { return !option->get_positional() && option->get_lnames()[0] != "help"; });
}

std::string shown(const CLI::Option& option) {
  const std::string name = "--" + option.get_lnames()[0];
  return is_flag(option) ? name : cat(name, " ", option.get_type_name());
}

std::string operands_of(const CLI::App& command) {
  const CLI::Option* words = command.get_option_no_throw(operands_name);
  return words == nullptr ? "" : words->get_type_name();
}

std::string synopsis(const CLI::App& command) {
  std::string text = command.get_name();
  if (const std::string operands = operands_of(command); !operands.empty()) text += " " + operands;
  for (const CLI::Option* option : options_of(command)) {
    const bool is_required = option->get_required() || option->get_group() == required_group;
    text += is_required ? cat(" ", shown(*option)) : cat(" [", shown(*option), "]");
  }
  return text;
}

std::string first_sentence(const std::string& text) {
  const std::string sentence = text.substr(0, std::min(text.find(". "), text.find(".\n")));
  return sentence.ends_with('.') ? sentence.substr(0, sentence.size() - 1) : sentence;
}

std::string wrapped(const std::string& text, std::size_t indent, std::size_t width, std::size_t hanging) {
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(" ")) {
      out += std::string(indent, ' ') + line + "\n";
      continue;
    }
    std::istringstream words(line);
    std::string current;
    std::size_t margin = indent;
    for (std::string word; words >> word;) {
      if (!current.empty() && margin + current.size() + 1 + word.size() > width) {
        out += std::string(margin, ' ') + current + "\n";
        current.clear();
        margin = indent + hanging;
      }
      current += (current.empty() ? "" : " ") + word;
    }
    out += (current.empty() ? "" : std::string(margin, ' ') + current) + "\n";
  }
  return out;
}

std::string entry(const std::string& name, const std::string& text, std::size_t name_width, std::size_t width) {
  const std::size_t column = 2 + name_width + 2;
  const std::string lines = wrapped(text, column, width);
  if (name.size() > name_width) return "  " + name + "\n" + lines;
  return "  " + name + std::string(name_width - name.size(), ' ') + "  " + lines.substr(column);
}

}  // namespace ringtrain
