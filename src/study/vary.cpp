#include "study/vary.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/table.h"
#include "config/experiment.h"

namespace ringtrain {
namespace {

constexpr int digits = 4;  // significant digits of drawn numbers: enough to differ, and few enough to type

double rounded(double value) {
  const std::string text = with_digits(value, digits);
  double result = value;
  std::from_chars(text.data(), text.data() + text.size(), result);
  return result;
}

std::string text_of(const NumberRange& range, double value) {
  if (range.integer) {
    const auto step = static_cast<double>(range.multiple_of);
    const double low = std::ceil(range.low / step), high = std::floor(range.high / step);
    return std::to_string(static_cast<std::int64_t>(std::clamp(value, low, high) * step));
  }
  return shortest(std::clamp(rounded(value), range.low, range.high));
}

template <class Type>
bool holds(const Field& field) {
  Experiment experiment;
  return std::holds_alternative<Type>(field.member(experiment));
}

}  // namespace

bool is_integer(const Field& field) {
  return holds<std::int64_t*>(field) || holds<std::uint64_t*>(field);
}

bool is_number(const Field& field) {
  return is_integer(field) || holds<double*>(field);
}

std::string shortest(double value) {
  char text[64];
  const bool plain = value == 0 || (std::abs(value) >= 1e-5 && std::abs(value) < 1e15);
  const auto end = plain ? std::to_chars(text, text + sizeof text, value, std::chars_format::fixed)
                         : std::to_chars(text, text + sizeof text, value);
  return {text, end.ptr};
}

std::string value_at(const NumberRange& range, double fraction) {
  double low = range.low, high = range.high;
  if (range.integer) {
    // Fractions of the range from m to m + 1 give the multiple m, so every multiple gets the same share.
    low = std::ceil(low / static_cast<double>(range.multiple_of));
    high = std::floor(high / static_cast<double>(range.multiple_of)) + 1;
  }
  const double value = range.logarithmic ? low * std::pow(high / low, fraction) : low + (high - low) * fraction;
  return text_of(range, range.integer ? std::floor(value) : value);
}

std::vector<std::string> grid_values(const NumberRange& range, std::int64_t points) {
  std::vector<std::string> values;
  for (std::int64_t i = 0; i < points; ++i) {
    const double fraction = points == 1 ? 0 : static_cast<double>(i) / static_cast<double>(points - 1);
    const double value = range.logarithmic ? range.low * std::pow(range.high / range.low, fraction)
                                           : range.low + (range.high - range.low) * fraction;
    const std::string text =
        text_of(range, range.integer ? std::round(value / static_cast<double>(range.multiple_of)) : value);
    if (values.empty() || values.back() != text) values.push_back(text);
  }
  return values;
}

std::vector<Setting> drawn_settings(const Draws& draws, std::uint64_t seed, std::uint32_t index) {
  std::vector<Setting> settings;
  for (std::size_t k = 0; k < draws.keys.size(); ++k)
    settings.push_back(
        {draws.keys[k].key, value_at(draws.keys[k].range, drawn(draws.sequence, seed, index, k)), draws.keys[k].place});
  return settings;
}

}  // namespace ringtrain
