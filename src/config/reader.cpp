#include "config/reader.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/table.h"
#include "base/text.h"
#include "base/utf8.h"
#include "config/batch_course.h"
#include "config/contradictions.h"
#include "config/schema.h"
#include "config/schema_text.h"
#include "config/yaml_document.h"

namespace ringtrain {
namespace {

using Place = ExperimentDraft::Place;

// The value of a key in the file or in an override, before it has a type.
struct Value {
  enum class Kind { nothing, scalar, list, map } kind = Kind::nothing;
  std::string text;
  bool quoted = false;
  std::vector<Value> items;
  Place place;
};

std::string found(const Value& value) {
  switch (value.kind) {
    case Value::Kind::nothing:
      return "has no value";
    case Value::Kind::list:
      return "is a list";
    case Value::Kind::map:
      return "is a map";
    case Value::Kind::scalar:
      break;
  }
  return "is " + shown(value.text) + (value.quoted ? " in quotes" : "");
}

[[noreturn]] void unknown_key(const Place& place, const std::string& key, bool is_map) {
  std::string hint = "Known here: ";
  const std::string_view section = section_of(key);
  const bool inside = is_section(section);
  for (const Field& field : schema())
    if (inside && section_of(field.key) == section) hint += cat(leaf_of(field.key), " ");
  for (const std::string_view inner : sections())
    if (inside && section_of(inner) == section) hint += cat(leaf_of(inner), " ");
  throw Error(cat(place.prefix, "unknown key ", shown(key), nearest_key(key, is_map)),
              inside ? hint : "configs/README.md lists every key.");
}

// The following functions convert text to typed members.

bool parse_integer(std::string_view text, auto& value) {
  const std::string_view digits = text.substr(text.starts_with('-') ? 1 : 0);
  if (digits.size() > 1 && digits[0] == '0') return false;  // refused, because YAML 1.1 reads it as octal
  return read_number(text, value);
}

bool parse_real(std::string_view text, double& value) {
  return read_number(text, value) && std::isfinite(value);
}

// The records of a run (experiment.yaml, run.json) are UTF-8, and their readers expect one line for a path. Throws
// Error if the text could not be read back. `place` begins the message.
void expect_plain_text(const std::string& place, std::string_view key, const std::string& text) {
  const auto control =
      std::ranges::find_if(text, [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; });
  const std::size_t at = std::min(find_invalid_utf8(text), static_cast<std::size_t>(control - text.begin()));
  if (at >= text.size()) return;
  const std::string byte = printed("0x%02x", static_cast<unsigned char>(text[at]));
  throw Error(cat(place, key, " has the byte ", byte, text[at] == '\n' ? " (a new line)" : "", " after ",
                  shown(text.substr(0, at)), ", expected one line of UTF-8: a run's records could not be read back"),
              "rename the file or folder, or make a link with another name (ln -s) and give that");
}

bool is_plain(const Value& value) {
  return value.kind == Value::Kind::scalar && !value.quoted;
}

bool read_number_of(const Value& value, double& number) {
  return is_plain(value) && parse_real(value.text, number);
}

// read_value() reads a value, or an item of a list, of each type. It returns false if the field expects another one.

bool read_value(const Field& field, const Value& value, std::string& text) {
  if (value.kind != Value::Kind::scalar) return false;
  expect_plain_text(value.place.prefix, field.key, value.text);
  text = value.text;
  if (!field.words_.empty()) return std::ranges::count(field.words_, text) > 0;
  if (text.empty()) return !field.required_;
  if (field.folder_name_) return is_folder_name(text);
  if (field.path_) text = expand_path(text, cat(value.place.prefix, field.key));
  return true;
}

bool read_value(const Field&, const Value& value, bool& flag) {
  flag = value.text == "true";
  return is_plain(value) && (value.text == "true" || value.text == "false");
}

bool read_value(const Field& field, const Value& value, std::int64_t& integer) {
  return is_plain(value) && parse_integer(value.text, integer) && field.range_.holds(static_cast<double>(integer));
}

bool read_value(const Field&, const Value& value, std::uint64_t& integer) {
  return is_plain(value) && parse_integer(value.text, integer);
}

bool read_value(const Field& field, const Value& value, double& number) {
  return read_number_of(value, number) && field.range_.holds(number);
}

bool read_value(const Field& field, const Value& value, EpochFactor& pair) {
  return value.kind == Value::Kind::list && value.items.size() == 2 && read_number_of(value.items[0], pair.epoch) &&
         read_number_of(value.items[1], pair.factor) && pair.epoch >= 0 && field.range_.holds(pair.factor);
}

bool read_value(const Field&, const Value& value, RunPoint& point) {
  const auto read = is_plain(value) ? parse_run_point(value.text) : std::nullopt;
  if (read) point = *read;
  return read.has_value();
}

// `item` is "", or "item 3 " if `at` is an item of the field's list.
[[noreturn]] void refuse_value(const Field& field, const Value& at, std::string_view item) {
  throw Error(cat(at.place.prefix, field.key, " ", item, found(at), ", expected ", expected(field)));
}

template <class T>
void assign_to(const Field& field, const Value& value, T& member) {
  if (!read_value(field, value, member)) refuse_value(field, value, "");
}

template <class T>
void assign_to(const Field& field, const Value& value, std::vector<T>& list) {
  if (value.kind != Value::Kind::list) refuse_value(field, value, "");
  list.clear();
  for (const Value& item : value.items) {
    T element{};
    if (!read_value(field, item, element)) refuse_value(field, item, cat("item ", list.size() + 1, " "));
    list.push_back(element);
  }
}

// Words of a list are different. Where any word is allowed, a single one need not be in a list: auto is read as [auto].
void assign_to(const Field& field, const Value& value, std::vector<std::string>& words) {
  const bool alone = value.kind == Value::Kind::scalar && field.words_.empty();
  if (value.kind != Value::Kind::list && !alone) refuse_value(field, value, "");
  words.clear();
  for (const Value& item : alone ? std::vector{value} : value.items) {
    std::string word;
    if (!read_value(field, item, word) || std::ranges::count(words, word) > 0)
      refuse_value(field, item, cat("item ", words.size() + 1, " "));
    words.push_back(word);
  }
}

void assign(const Field& field, const Value& value, Experiment& experiment) {
  std::visit([&](auto* member) { assign_to(field, value, *member); }, field.member(experiment));
}

std::string_view trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

// Parses "[1, 2]" and "[[0, 1], [30, 0.1]]". No key has deeper lists.
Value list_of_text(std::string_view text, const Place& where, bool of_lists) {
  Value list{Value::Kind::list, "", false, {}, where};
  std::string_view rest = trimmed(text.substr(1, text.size() - 2));
  while (!rest.empty()) {
    const bool inner = of_lists && rest.starts_with('[') && rest.find(']') != std::string_view::npos;
    const auto end = std::min(rest.find(',', inner ? rest.find(']') : 0), rest.size());
    const std::string_view item = trimmed(rest.substr(0, end));
    if (inner && item.ends_with(']'))
      list.items.push_back(list_of_text(item, where, false));
    else
      list.items.push_back({Value::Kind::scalar, std::string(item), false, {}, where});
    rest = trimmed(rest.substr(std::min(end + 1, rest.size())));
  }
  return list;
}

// Parses the value of an override.
Value value_of_text(const Field& field, const std::string& text, const Place& where) {
  Value value{Value::Kind::scalar, text, false, {}, where};
  if (text.empty() && !has_type<std::string>(field)) value.kind = Value::Kind::nothing;
  if (!text.starts_with('[') || !text.ends_with(']') || !is_list(field)) return value;
  return list_of_text(text, where, has_type<std::vector<EpochFactor>>(field));
}

// Reads the file.
class FileReader {
 public:
  FileReader(const std::string& yaml, const std::string& path, Experiment& experiment,
             ExperimentDraft::GivenKeys& given, ExperimentDraft::Sections& sections)
      : yaml_(yaml), path_(path), experiment_(experiment), given_(given), sections_(sections) {}

  void read() {
    const YAML::Node document = load_yaml_document(yaml_, path_, "experiment");
    if (!document.IsMap()) {
      const Value value = to_value(document, document.Mark());
      throw Error(
          cat(value.place.prefix, "the file ", found(value), ", expected a map of keys such as name: my-study"));
    }
    sections_.emplace("", place(YAML::Mark()));
    read_map(document, "");
  }

 private:
  Place place(const YAML::Mark& mark) const {
    return {yaml_place(path_, mark), {0, std::max(mark.line, 0) + 1, std::max(mark.column, 0) + 1}};
  }

  // `key` is the place of the key. Missing values are reported there.
  // `depth` limits how many nested lists are followed, because a YAML list may contain itself by an alias.
  Value to_value(const YAML::Node& node, const YAML::Mark& key, int depth = 2) const {
    Value value;
    value.place = place(node.IsNull() || node.Mark().is_null() ? key : node.Mark());
    if (node.IsScalar()) {
      value.kind = Value::Kind::scalar;
      value.text = node.Scalar();
      value.quoted = node.Tag() == "!";
    } else if (node.IsSequence()) {
      value.kind = Value::Kind::list;
      if (depth == 0) return value;
      for (const YAML::Node& item : node) value.items.push_back(to_value(item, node.Mark(), depth - 1));
    } else if (node.IsMap()) {
      value.kind = Value::Kind::map;
    }
    return value;
  }

  void read_map(const YAML::Node& map, const std::string& section) {
    std::map<std::string, Place> seen;
    for (const auto& entry : map) {
      const Place where = place(entry.first.Mark());
      if (!entry.first.IsScalar()) throw Error(where.prefix + "a key that is not a word, expected a key such as seed");
      const std::string leaf = entry.first.Scalar();
      const std::string key = section.empty() ? leaf : section + "." + leaf;
      const auto [first, is_new] = seen.emplace(leaf, where);
      if (!is_new)
        throw Error(cat(where.prefix, "the key ", shown(key), " is given twice, first at line ",
                        std::get<1>(first->second.order), ", expected once"));
      const Value value = to_value(entry.second, entry.first.Mark());
      const Field* field = find_field(key);
      if (is_section(key) && section_of(key) == section) {
        read_section(key, where, value, entry.second);
      } else if (field != nullptr && section_of(key) == section) {
        assign(*field, value, experiment_);
        given_[field->key] = where;
      } else if (field != nullptr) {
        throw Error(cat(where.prefix, "unknown key ", shown(key), ", expected ", leaf_of(key), " below ",
                        section_of(key), ": (dots are for overrides)"));
      } else {
        const std::string mistake = value.kind == Value::Kind::nothing ? missing_separator(leaf) : "";
        if (leaf.find_first_of(" :") != std::string::npos && !mistake.empty()) throw Error(where.prefix + mistake);
        unknown_key(where, key, value.kind == Value::Kind::map);
      }
    }
  }

  // `where` is the place of the section's name, and `value` is what `node` is read as.
  void read_section(const std::string& section, const Place& where, const Value& value, const YAML::Node& node) {
    const int line = std::get<1>(value.place.order);
    if (value.kind == Value::Kind::scalar && line > std::get<1>(where.order)) {
      const std::string mistake = missing_separator(line_at(yaml_, line - 1));
      if (!mistake.empty()) throw Error(value.place.prefix + mistake);
    }
    if (value.kind != Value::Kind::map)
      throw Error(cat(value.place.prefix, section, " ", found(value), ", expected keys of this section below it",
                      value.kind == Value::Kind::scalar ? nearest_key(section, false) : ""));
    sections_.emplace(section, where);
    read_map(node, section);
  }

  const std::string &yaml_, &path_;
  Experiment& experiment_;
  ExperimentDraft::GivenKeys& given_;
  ExperimentDraft::Sections& sections_;
};

}  // namespace

ExperimentDraft::ExperimentDraft(const std::string& path) : ExperimentDraft(read_yaml_text(path, "experiment"), path) {}

ExperimentDraft::ExperimentDraft(const std::string& yaml, const std::string& path) {
  FileReader(yaml, path, experiment_, given_, sections_).read();
}

// Returns the place where a missing key would have to be added.
const Place& ExperimentDraft::section_place(std::string_view section) const {
  const auto place = sections_.find(section);
  return place == sections_.end() ? sections_.at("") : place->second;
}

void ExperimentDraft::apply_override(const std::string& text) {
  const std::string place = cat("override ", shown(text), ": ");
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw Error(cat(place, "no key before an '=', expected key.path=value such as batch.global=4096"));
  set(text.substr(0, equals), text.substr(equals + 1), place);
}

void ExperimentDraft::set(const std::string& key, const std::string& value, const std::string& place) {
  const Place where{place, {++changes_, 0, 0}};
  const Field* field = find_field(key);
  if (field == nullptr) {
    if (is_section(key))
      throw Error(cat(where.prefix, key, " is a section, expected one of its keys", nearest_key(key, false)));
    unknown_key(where, key, false);
  }
  if (value == no_value && !field->required_) {
    set_default(*field, experiment_);
    given_.erase(field->key);
    return;
  }
  assign(*field, value_of_text(*field, value, where), experiment_);
  given_[field->key] = where;
}

const Experiment& ExperimentDraft::finish() const {
  for (const Field& field : schema()) {  // once more, because paths may have values of environment variables
    const ConstMember member = member_of(field, experiment_);
    if (const auto* text = std::get_if<const std::string*>(&member)) expect_plain_text("", field.key, **text);
  }
  for (const Field& field : schema())
    if (field.required_ && !given_.contains(field.key))
      throw Error(
          cat(section_place(section_of(field.key)).prefix, field.key, " is missing, expected ", expected(field)));
  for (const Field& field : schema()) {
    const Field* other = replacement_of(field, experiment_);
    if (other == nullptr || !given_.contains(field.key) || !given_.contains(other->key)) continue;
    const Place &a = given_.at(field.key), &b = given_.at(other->key);
    throw Error(
        (a.order > b.order ? a : b).prefix + wrong_pair(experiment_, other->key, field.key, only_one).what,
        cat("Leave out ", field.key, " (as an override: ", field.key, "=", no_value, "), or set ", other->key, "=0."));
  }

  if (const auto contradiction = find_contradiction(experiment_)) {
    // The error is reported at the key that was set last, because that key caused the contradiction.
    Place where = section_place("");
    for (const std::string_view key : contradiction->keys) {
      const auto place = given_.find(key);
      if (place != given_.end() && place->second.order > where.order) where = place->second;
    }
    throw Error(where.prefix + contradiction->what, way_out(*contradiction, experiment_));
  }
  return experiment_;
}

Experiment parse_experiment(const std::string& yaml, const std::string& path,
                            const std::vector<std::string>& overrides) {
  ExperimentDraft draft(yaml, path);
  for (const std::string& text : overrides) draft.apply_override(text);
  return draft.finish();
}

Experiment read_experiment(const std::string& path, const std::vector<std::string>& overrides) {
  ExperimentDraft draft(path);
  for (const std::string& text : overrides) draft.apply_override(text);
  return draft.finish();
}

}  // namespace ringtrain
