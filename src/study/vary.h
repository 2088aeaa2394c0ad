// The keys that a study varies: lists, grids and cases, which are all combined, and keys that are drawn together.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/schema.h"
#include "study/quasi_random.h"

namespace ringtrain {

// Words of a study beside the experiment's keys. batch_per_rank is batch.global / ranks_per_trial.
inline constexpr std::string_view ranks_key = "ranks_per_trial", per_rank_key = "batch_per_rank";

// A key's value, as an override writes it. `place` begins messages about it: "study.yaml:7:3: ".
struct Setting {
  std::string key, value, place;
};

// One value of a list, or one case of a group.
struct Choice {
  std::string name;  // of a case; "": a value
  std::vector<Setting> settings;
};

// One of its choices is taken in each trial.
struct Axis {
  std::string name;  // a key, or a group's
  bool is_group = false;
  std::vector<Choice> choices;
};

// The range from which a number is drawn or computed.
struct NumberRange {
  double low = 0, high = 0;
  bool logarithmic = false;
  bool integer = false;
  std::int64_t multiple_of = 1;  // integers only
};

struct DrawnKey {
  std::string key, place;
  NumberRange range;
};

// `count` points over all drawn keys at once.
struct Draws {
  std::vector<DrawnKey> keys;
  Sequence sequence = Sequence::sobol;
  std::uint32_t count = 0;
};

// The number at `fraction` in (0, 1) of the range, as an override writes it: rounded to four digits, or to a multiple,
// and within the range. Each integer (multiple) has the same share of a uniform range.
std::string value_at(const NumberRange& range, double fraction);

// `points` numbers from low to high, both included, at even distances or ratios; equal ones once.
std::vector<std::string> grid_values(const NumberRange& range, std::int64_t points);

// The settings of point `index`, one for each drawn key.
std::vector<Setting> drawn_settings(const Draws& draws, std::uint64_t seed, std::uint32_t index);

// A field whose value is one number.
bool is_number(const Field& field);
bool is_integer(const Field& field);

// The shortest digits that read back as the same number.
std::string shortest(double value);

}  // namespace ringtrain
