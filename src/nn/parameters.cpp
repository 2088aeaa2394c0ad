#include "nn/parameters.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/rounding.h"

namespace ringtrain {

const char* parameter_kind_name(ParameterKind kind) {
  switch (kind) {
    case ParameterKind::weight:
      return "weight";
    case ParameterKind::bias:
      return "bias";
    case ParameterKind::norm:
      return "norm";
    case ParameterKind::statistic:
      return "statistic";
  }
  return "?";
}

void ParameterTable::append(Parameter parameter) {
  parameter.offset = size_;
  parameter.count = 1;
  for (std::int64_t d : parameter.shape) parameter.count *= d;
  size_ = round_up(size_ + parameter.count, tensor_alignment);
  if (parameter.kind != ParameterKind::statistic) {
    count_ += parameter.count;
    trained_ = size_;
  }
  all_.push_back(std::move(parameter));
}

const Parameter& ParameterTable::find(const std::string& name) const {
  auto found = std::find_if(all_.begin(), all_.end(), [&](const Parameter& p) { return p.name == name; });
  if (found == all_.end()) throw Error(cat("the model has no parameter '", name, "'"));
  return *found;
}

void initialize(const ParameterTable& table, std::uint64_t seed, std::span<float> flat) {
  std::fill(flat.begin(), flat.end(), 0.0f);
  for (const Parameter& p : table.all()) {
    const std::uint64_t key = random_key(seed, RandomPurpose::initial_weights) ^ fnv1a(p.name);
    for (std::int64_t i = 0; i < p.count; ++i) {
      const auto index = static_cast<std::uint64_t>(i);
      double value = p.scale;
      if (p.initial == InitialValues::uniform) value *= 2 * random_uniform(key, index) - 1;
      if (p.initial == InitialValues::normal) value *= random_normal(key, index);
      if (p.initial == InitialValues::truncated_normal) value *= random_truncated_normal(key, index);
      if (i >= p.part.begin && i < p.part.end) value = p.part.value;
      flat[static_cast<std::size_t>(p.offset + i)] = static_cast<float>(value);
    }
  }
}

std::string weight_array(const Parameter& tensor) {
  return cat(weights_prefix, tensor.name);
}

std::string state_array(std::string_view state, const Parameter& tensor) {
  return cat(states_prefix, state, "/", tensor.name);
}

bool is_weight_array(std::string_view name) {
  return name.starts_with(weights_prefix);
}

bool is_state_array(std::string_view name, const Parameter& tensor) {
  return name.starts_with(states_prefix) && name.ends_with("/" + tensor.name);
}

}  // namespace ringtrain
