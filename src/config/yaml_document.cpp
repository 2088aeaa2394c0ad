#include "config/yaml_document.h"

#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"

namespace ringtrain {
namespace {

constexpr std::size_t file_limit_bytes = 1 << 20;  // a larger file is a data file that was given by mistake

// Remembers where the last document started and ignores its content.
struct DocumentStart : YAML::EventHandler {
  YAML::Mark start;
  void OnDocumentStart(const YAML::Mark& mark) override { start = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

std::string place(const std::string& path, int line, int column) {
  return cat(path, ":", std::max(line, 0) + 1, ":", std::max(column, 0) + 1, ": ");
}

std::string with_article(const std::string& kind) {
  return (kind == "experiment" ? "an " : "a ") + kind;
}

constexpr std::string_view blanks = " \t\r";

std::size_t indentation(std::string_view line) {
  return std::min(line.find_first_not_of(blanks), line.size());
}

// Returns the line without its indentation, comment and trailing blanks.
std::string_view content_of(std::string_view line) {
  line.remove_prefix(indentation(line));
  if (line.starts_with('#')) return {};
  line = line.substr(0, line.find(" #"));
  return line.substr(0, line.find_last_not_of(blanks) + 1);
}

// Lines and columns count from 0.
struct YamlMistake {
  int line = 0, column = 0;
  std::string what;
};

// Looks at the line where the parser gave up, and at the last line before it that is not empty or a comment.
std::optional<YamlMistake> find_yaml_mistake(std::string_view yaml, int line, int column) {
  const auto text = [&](int number) { return line_at(yaml, number); };
  if (text(line).substr(0, indentation(text(line))).find('\t') != std::string_view::npos)
    return YamlMistake{line, column, "a tab in the indentation, expected spaces"};
  int before = line - 1;
  while (before > 0 && content_of(text(before)).empty()) --before;
  for (const int number : {line, before}) {
    if (number < 0) continue;
    const std::string what = missing_separator(text(number));
    if (!what.empty()) return YamlMistake{number, static_cast<int>(indentation(text(number))), what};
  }
  return std::nullopt;
}

}  // namespace

std::string yaml_place(const std::string& path, const YAML::Mark& mark) {
  return place(path, mark.line, mark.column);
}

std::string read_yaml_text(const std::string& path, const std::string& kind) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw Error(cat(path, ":1:1: cannot be opened, expected ", with_article(kind), " file"),
                "configs/ holds examples.");
  std::string yaml(file_limit_bytes + 1, '\0');
  file.read(yaml.data(), static_cast<std::streamsize>(yaml.size()));
  if (file.bad()) throw Error(cat(path, ":1:1: cannot be read, expected ", with_article(kind), " file"));
  yaml.resize(static_cast<std::size_t>(file.gcount()));
  if (yaml.size() > file_limit_bytes)
    throw Error(cat(path, ":1:1: more than 1 MiB, expected ", with_article(kind), " file"));
  return yaml;
}

YAML::Node load_yaml_document(const std::string& yaml, const std::string& path, const std::string& kind) {
  YAML::Node document;
  DocumentStart last;
  bool more = false;
  try {
    document = YAML::Load(yaml);
    // YAML::LoadAll (version 0.7) is not used, because it never ends if text comes before a map.
    std::istringstream stream(yaml);
    YAML::Parser parser(stream);
    more = parser.HandleNextDocument(last) && parser.HandleNextDocument(last);
  } catch (const YAML::Exception& error) {
    const auto mistake = find_yaml_mistake(yaml, error.mark.line, error.mark.column);
    throw Error(cat(mistake ? place(path, mistake->line, mistake->column) : yaml_place(path, error.mark),
                    "not valid YAML: ", mistake ? mistake->what : error.msg));
  }
  if (more)
    throw Error(cat(yaml_place(path, last.start), "more text after the ", kind, "'s end, expected one YAML document"));
  if (!document.IsDefined() || document.IsNull())
    throw Error(cat(path, ":1:1: the file is empty, expected ", with_article(kind)), "configs/ holds examples.");
  return document;
}

std::string_view line_at(std::string_view text, int number) {
  for (; number > 0 && !text.empty(); --number) text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  return text.substr(0, text.find('\n'));
}

std::string missing_separator(std::string_view line) {
  const std::string_view content = content_of(line);
  const auto is_key = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  const auto key_end = std::find_if_not(content.begin(), content.end(), is_key);
  const std::string_view key(content.begin(), key_end);
  std::string_view value(key_end, content.end());
  if (key.empty() || (key[0] >= '0' && key[0] <= '9') || value.find(": ") != std::string_view::npos ||
      value.ends_with(':'))
    return "";
  if (value.empty()) return cat(shown(content), " has no colon, expected ", cut_to(key, 60), ": and a value");
  const bool has_blank = blanks.find(value[0]) != std::string_view::npos;
  value.remove_prefix(indentation(value));
  const bool has_colon = value.starts_with(':'), has_equals = value.starts_with('=');  // key=value is for overrides
  if (!has_blank && !has_colon && !has_equals) return "";
  if (has_colon || has_equals) value.remove_prefix(1);
  value.remove_prefix(indentation(value));
  return cat(shown(content), has_colon ? " has no space after the colon" : " has no colon", ", expected ",
             cut_to(key, 60), ": ", cut_to(value, 60));
}

namespace {

std::string found(const YAML::Node& node) {
  if (node.IsScalar()) return cat("is ", shown(node.Scalar()), node.Tag() == "!" ? " in quotes" : "");
  return node.IsNull() ? "has no value" : node.IsMap() ? "is a map" : "is a list";
}

// Throws Error for lists that are nested more than two deep, because no key has such a value.
std::string text_of(const YAML::Node& node, const Entry& entry, int depth) {
  if (node.IsScalar()) return node.Scalar();
  if (!node.IsSequence() || depth == 2) refuse({entry.key, node, entry.key_place, entry.place}, "a value of this key");
  return "[" + joined(node, ", ", [&](const YAML::Node& item) { return text_of(item, entry, depth + 1); }) + "]";
}

}  // namespace

void refuse(const Entry& entry, const std::string& expected, const std::string& hint) {
  throw Error(cat(entry.place, entry.key, " ", found(entry.node), ", expected ", expected), hint);
}

void refuse_key(const Entry& entry, std::span<const std::string_view> known) {
  throw Error(cat(entry.key_place, "unknown key ", shown(entry.key), nearest_word(entry.key, known)),
              cat("Known here: ", joined(known)));
}

std::vector<Entry> entries(const YAML::Node& map, const std::string& path, const std::string& what,
                           std::string_view example) {
  if (!map.IsMap())
    throw Error(cat(yaml_place(path, map.Mark()), what, " ", found(map), ", expected a map such as ", example));
  std::vector<Entry> list;
  std::set<std::string> seen;
  for (const auto& pair : map) {
    const std::string where = yaml_place(path, pair.first.Mark());
    if (!pair.first.IsScalar()) throw Error(where + "a key that is not a word, expected a key such as batch.global");
    const std::string& key = pair.first.Scalar();
    if (!seen.insert(key).second) throw Error(cat(where, "the key ", shown(key), " is given twice, expected once"));
    const bool nowhere = pair.second.IsNull() || pair.second.Mark().is_null();
    list.push_back({key, pair.second, where, nowhere ? where : yaml_place(path, pair.second.Mark())});
  }
  return list;
}

double number_of(const Entry& entry, double low, double high, const std::string& expected) {
  double value = 0;
  const std::string text = entry.node.IsScalar() ? entry.node.Scalar() : "";
  if (entry.node.Tag() == "!" || !read_number(text, value) || !(value >= low && value <= high)) refuse(entry, expected);
  return value;
}

std::int64_t integer_of(const Entry& entry, double low, double high) {
  const std::string expected =
      cat("an integer from ", static_cast<std::int64_t>(low), " to ", static_cast<std::int64_t>(high));
  const double value = number_of(entry, low, high, expected);
  if (entry.node.Scalar().find_first_not_of("0123456789") != std::string::npos) refuse(entry, expected);
  return static_cast<std::int64_t>(value);
}

std::string word_of(const Entry& entry, std::initializer_list<std::string_view> words) {
  const std::string word = entry.node.IsScalar() ? entry.node.Scalar() : "";
  if (std::ranges::count(words, word) == 0) refuse(entry, "one of " + joined(words));
  return word;
}

std::string override_text(const YAML::Node& node, const Entry& entry) {
  return text_of(node, entry, 0);
}

}  // namespace ringtrain
