#include "config/position.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

namespace ringtrain {

std::optional<RunPoint> parse_run_point(std::string_view text) {
  constexpr double most_epochs = 1e6, most_steps = 1e12;
  RunPoint point;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, point.at);
  if (text.empty() || error != std::errc() || !std::isfinite(point.at)) return std::nullopt;
  std::string_view unit(end, static_cast<std::size_t>(last - end));
  unit.remove_prefix(std::min(unit.find_first_not_of(' '), unit.size()));
  if (unit != "" && unit != "epoch" && unit != "epochs" && unit != "step" && unit != "steps") return std::nullopt;
  point.in_steps = unit.starts_with("step");
  if (point.in_steps && point.at != std::floor(point.at)) return std::nullopt;
  if (point.at < 0 || point.at > (point.in_steps ? most_steps : most_epochs)) return std::nullopt;
  return point;
}

std::string to_string(const RunPoint& point) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, point.at, std::chars_format::fixed).ptr;
  return std::string(text, end) + (point.in_steps ? point.at == 1 ? " step" : " steps" : "");
}

std::string with_unit(const RunPoint& point) {
  return to_string(point) + (point.in_steps ? "" : point.at == 1 ? " epoch" : " epochs");
}

std::string compact_text(const RunPoint& point) {
  std::string text = to_string(point);
  std::erase(text, ' ');
  return text;
}

std::optional<RunAndPoint> parse_run_and_point(std::string_view text) {
  const auto at = text.rfind('@');
  if (at == std::string_view::npos || at == 0 || text.ends_with(".h5")) return std::nullopt;
  const std::optional<RunPoint> point = parse_run_point(text.substr(at + 1));
  if (!point) return std::nullopt;
  return RunAndPoint{std::string(text.substr(0, at)), *point};
}

std::string run_of_source(const std::string& from) {
  if (const auto source = parse_run_and_point(from)) return source->run;
  return std::filesystem::path(from).parent_path().parent_path().string();
}

}  // namespace ringtrain
