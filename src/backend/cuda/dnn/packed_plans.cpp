#include "backend/cuda/dnn/packed_plans.h"

#include <charconv>

#include "base/error.h"

namespace ringtrain::cuda {
namespace {

const char* const plan_word = "plan";
const char* const refused_word = "refused";

// The text up to the line's end, which is passed over; nothing when there is no line end.
bool take_line(const std::string& text, std::size_t& at, std::string& line) {
  const std::size_t end = text.find('\n', at);
  if (end == std::string::npos) return false;
  line = text.substr(at, end - at);
  at = end + 1;
  return true;
}

}  // namespace

// Per plan three lines (key, word, bytes) and the bytes.
std::string pack(const PackedPlans& plans) {
  std::string text;
  for (const auto& [key, plan] : plans)
    text += cat(key, '\n', plan.refused ? refused_word : plan_word, '\n', plan.content.size(), '\n', plan.content);
  return text;
}

PackedPlans unpack(const std::string& text) {
  PackedPlans plans;
  std::string key, word, length;
  for (std::size_t at = 0; take_line(text, at, key) && take_line(text, at, word) && take_line(text, at, length);) {
    std::size_t bytes = 0;
    const auto [end, error] = std::from_chars(length.data(), length.data() + length.size(), bytes);
    if (error != std::errc() || end != length.data() + length.size() || bytes > text.size() - at) break;
    if (word != plan_word && word != refused_word) break;
    plans[key] = {word == refused_word, text.substr(at, bytes)};
    at += bytes;
  }
  return plans;
}

}  // namespace ringtrain::cuda
