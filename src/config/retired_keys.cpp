#include "config/retired_keys.h"

#include <algorithm>
#include <iterator>

namespace ringtrain {
namespace {

const RetiredKey retired_keys[] = {
    {.key = "optimizer.decay_norm_and_bias",
     .now = "optimizer.no_decay",
     .value_now = [](const std::string& old) -> std::optional<std::string> {
       if (old == "true") return "[]";
       if (old == "false") return "[norm, bias]";
       return std::nullopt;
     },
     .hint = "true is now no_decay: [], false is no_decay: [norm, bias]."},
};

}  // namespace

const RetiredKey* find_retired_key(std::string_view key) {
  const auto* found = std::ranges::find(retired_keys, key, &RetiredKey::key);
  return found == std::end(retired_keys) ? nullptr : found;
}

}  // namespace ringtrain
