// The list of all fields of an experiment, and what holds for a field in one experiment: whether it has an effect, and
// whether it decides what is learned. The reader, the texts (schema_text.h) and configs/README.md use this list.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/experiment.h"

namespace ringtrain {

template <class... Value>
struct PointersTo {
  using Any = std::variant<Value*...>;
  using AnyConst = std::variant<const Value*...>;
};
using FieldPointers =
    PointersTo<std::string, bool, std::int64_t, std::uint64_t, double, std::vector<double>, std::vector<std::int64_t>,
               std::vector<std::string>, std::vector<EpochFactor>, std::vector<RunPoint>>;
// The place of a field in an Experiment, and in one that is only read. The type of the pointer is the type of the
// field.
using Member = FieldPointers::Any;
using ConstMember = FieldPointers::AnyConst;

struct Range {
  double low = std::numeric_limits<double>::lowest(), high = std::numeric_limits<double>::max();
  bool low_open = false, high_open = false;  // the bound itself is excluded
  bool holds(double value) const {
    return (low_open ? value > low : value >= low) && (high_open ? value < high : value <= high);
  }
};

// One key of the experiment file. The setters make the list in schema.cpp read like a table.
struct Field {
  std::string_view key;  // "batch.global"
  Member (*member)(Experiment&);
  std::string_view unit_;                     // "samples"; empty: none
  Range range_;                               // of a number, of each number of a list, or of the factors of pairs
  std::vector<std::string_view> words_;       // text, and each text of a list: the allowed words; empty: any
  bool required_ = false;                     // must be given; a required text must not be empty
  bool folder_name_ = false;                  // text: usable as the name of a folder
  bool path_ = false;                         // text: a path, in which ~ and $VARIABLE are replaced
  std::string_view only_with_;                // the key that decides whether this field has an effect; empty: none
  std::vector<std::string_view> only_words_;  // the values of only_with_ with which this field has an effect
  std::string_view only_for_;                 // the data with which this field has an effect; empty: any
  std::vector<std::string_view> also_;        // the key's names in other programs, from which nearest_key() guesses
  bool how_it_runs_ = false;     // the key decides speed, folders or logs; for exceptions see decides_what_is_learned()
  bool off_by_default_ = false;  // with the default, the key changes nothing, and an experiment's id leaves it out
  std::string_view instead_of_;  // the key whose place this one takes if it is not its default; empty: none
  std::string_view meaning_;

  Field(std::string_view key_path, Member (*place)(Experiment&)) : key(key_path), member(place) {}
  Field& unit(std::string_view text) { return unit_ = text, *this; }
  Field& from(double low, double high) { return range_ = {low, high, false, false}, *this; }
  Field& above(double low, double high = std::numeric_limits<double>::max()) {
    return range_ = {low, high, true, false}, *this;
  }
  Field& fraction() { return range_ = {0, 1, false, true}, *this; }
  Field& words(std::vector<std::string_view> allowed) { return words_ = std::move(allowed), *this; }
  Field& required() { return required_ = true, *this; }
  Field& folder_name() { return folder_name_ = true, *this; }
  Field& path() { return path_ = true, *this; }
  Field& only_with(std::string_view other, std::vector<std::string_view> with) {
    return only_with_ = other, only_words_ = std::move(with), *this;
  }
  Field& only_for(std::string_view data) { return only_for_ = data, *this; }
  Field& how_it_runs() { return how_it_runs_ = true, *this; }
  Field& off_by_default() { return off_by_default_ = true, *this; }
  Field& instead_of(std::string_view other) { return instead_of_ = other, *this; }
  Field& also(std::vector<std::string_view> names) { return also_ = std::move(names), *this; }
  Field& means(std::string_view text) { return meaning_ = text, *this; }
};

// Returns all fields in the order of the file. Keys without a section come first.
const std::vector<Field>& schema();

// Returns the field of a key, or null if there is no such key.
const Field* find_field(std::string_view key);

// section_of() gives "batch" for "batch.global", "optimizer.half_life" for "optimizer.half_life.beta1", and "" for
// "seed". leaf_of() gives the part after the section.
std::string_view section_of(std::string_view key);
std::string_view leaf_of(std::string_view key);

// Returns the sections in the order of the file. A section within another one follows it: "optimizer", then
// "optimizer.half_life".
const std::vector<std::string_view>& sections();
bool is_section(std::string_view key);

// Returns "; did you mean 'learning_rate.base'?" for an unknown key, and "" if no known key is near. `is_map` says that
// the unknown key has keys below it. Outside of all sections, only a section can then be meant.
std::string nearest_key(std::string_view key, bool is_map);

ConstMember member_of(const Field& field, const Experiment& experiment);

// Returns whether the field's values have this type.
template <class Value>
bool has_type(const Field& field) {
  Experiment experiment;
  return std::holds_alternative<Value*>(field.member(experiment));
}
bool is_list(const Field& field);

// Returns whether the field has its default value.
bool is_default(const Field& field, const Experiment& experiment);

void set_default(const Field& field, Experiment& experiment);

// Returns the field that takes the place of `field` in this experiment (Field::instead_of()); null: none.
const Field* replacement_of(const Field& field, const Experiment& experiment);

// Returns whether the field has an effect. It has none if it belongs to a certain value of another key, and that key
// has a different value here. It has none either if another field takes its place.
bool has_effect(const Field& field, const Experiment& experiment);

// Returns whether the field has an effect with this kind of data: "images", "names" or "running text".
bool has_effect_on(const Field& field, std::string_view data);

// Returns whether the text can name a folder: [A-Za-z0-9._-]+, not starting with '.', at most 100 characters.
bool is_folder_name(std::string_view text);

// Returns whether the field decides what this experiment learns. Fields for speed, folders or logging
// (Field::how_it_runs()) do not. Those of the noise scale do if training depends on the measured noise:
// optimizer.adascale computes its gain from noise.small_batch, and batch.follow_noise chooses the batch. Those of
// parallel decide only with asynchronous servers or backup workers, and those of branch only in a branch. The id of an
// experiment is made from the fields that decide (run/plan.h).
bool decides_what_is_learned(const Field& field, const Experiment& experiment);
// Returns these fields with their values, a line for each: "model.depth=18".
std::string deciding_keys(const Experiment& experiment);

}  // namespace ringtrain
