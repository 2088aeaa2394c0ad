#include "study/entries.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/number_in_text.h"
#include "base/utf8.h"
#include "config/yaml_document.h"

namespace ringtrain {
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
