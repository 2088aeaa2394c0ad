#include "base/json.h"

#include <algorithm>

#include "base/error.h"
#include "base/files.h"

namespace ringtrain {

int json_depth(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

Json parse_json(std::string_view text) {
  if (json_depth(text) > deepest_json) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

Json parse_json(std::istream& in) {
  return parse_json(rest_of(in));
}

std::string json_text(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string said_by(const Json::exception& error) {
  const std::string text = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 9: ..."
  const std::size_t end = text.find("] ");
  return text.starts_with("[json.exception.") && end != std::string::npos ? text.substr(end + 2) : text;
}

std::optional<double> real_in(const Json& json) {
  return json.is_number() ? std::optional(json.get<double>()) : std::nullopt;
}

std::optional<std::string> text_in(const Json& json) {
  return json.is_string() ? std::optional(json.get<std::string>()) : std::nullopt;
}

const Json& value_or_null(const Json& object, const char* key) {
  static const Json null;
  const auto found = object.find(key);
  return found != object.end() ? *found : null;
}

void refuse_integer(const Json& json, std::size_t bits) {
  throw Error(cat(json.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 60), " is not a whole number of ",
                  bits, " bits"));
}

}  // namespace ringtrain
