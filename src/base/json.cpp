#include "base/json.h"

#include <algorithm>
#include <string>

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

void refuse_integer(const Json& json, std::size_t bits) {
  throw Error(cat(json.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 60), " is not a whole number of ",
                  bits, " bits"));
}

}  // namespace ringtrain
