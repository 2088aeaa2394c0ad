// The keys that a study varies. Lists, grids and cases are combined with each other. The values of all drawn keys are
// drawn together, as the coordinates of one point. By default the points are quasi-random: they fill a cube evenly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/schema.h"

namespace ringtrain {

// Words of a study, in addition to the experiment's keys. batch_per_rank is batch.global / ranks_per_trial.
inline constexpr std::string_view ranks_key = "ranks_per_trial", per_rank_key = "batch_per_rank";

// A key's value, as the text of an override. Messages about the value begin with `place`: "study.yaml:7:3: ".
struct Setting {
  std::string key, value, place;
};

// One value of a list, or one case of a group.
struct Choice {
  std::string name;  // name of a case; "" for a value
  std::vector<Setting> settings;
};

// A list of choices. Each trial takes one of them.
struct Axis {
  std::string name;  // a key or the name of a group
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

inline constexpr std::size_t most_drawn_keys = 10;  // the number of dimensions of the points

enum class Sequence { sobol, halton, random };

// A number of points. Each point has a value for every drawn key.
struct Draws {
  std::vector<DrawnKey> keys;
  Sequence sequence = Sequence::sobol;
  std::uint32_t count = 0;
};

// Returns the number at `fraction` in (0, 1) of the range, as the text of an override. It is rounded to four digits, or
// to a multiple for integers, and stays within the range. In a uniform range every integer is equally likely.
std::string value_at(const NumberRange& range, double fraction);

// Returns `points` numbers from low to high, both included. They are rounded as in value_at(). They have equal
// distances, or equal ratios in a logarithmic range. Numbers that become equal by rounding occur once.
std::vector<std::string> grid_values(const NumberRange& range, std::int64_t points);

// Returns coordinate `dimension` (from 0) of point `index` (from 0) of Sobol's sequence, multiplied by 2^32. The points
// are in Gray code order (Antonov and Saleev 1979). The direction numbers are those of Joe and Kuo 2008
// (new-joe-kuo-6). Point 0 is 0.
std::uint32_t sobol(std::uint32_t index, std::size_t dimension);

// Returns the radical inverse of `index` (Halton 1960). The bases of the dimensions are the primes 2, 3, 5, 7, ...
// Point 0 is 0.
double halton(std::uint64_t index, std::size_t dimension);

// Returns a number in (0, 1) that depends only on the arguments, so a study that draws more points keeps its earlier
// points. The seed changes Sobol's points by a digital shift (an XOR of the bits), after which they fill the cube as
// evenly as before. It changes Halton's points by a rotation: it adds a number, modulo 1 (Cranley and Patterson 1976).
double drawn(Sequence sequence, std::uint64_t seed, std::uint32_t index, std::size_t dimension);

// Returns the settings of point `index`, one for each drawn key.
std::vector<Setting> drawn_settings(const Draws& draws, std::uint64_t seed, std::uint32_t index);

// is_number() returns whether the field's value is one number. is_integer() returns whether it is an integer.
bool is_number(const Field& field);
bool is_integer(const Field& field);

}  // namespace ringtrain
