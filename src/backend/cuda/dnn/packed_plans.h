// cuDNN plans as bytes: in the cache, between ranks and in a run's folder.
#pragma once

#include <map>
#include <string>

namespace ringtrain::cuda {

// What is kept of an operation: cuDNN's bytes, or why it has no plan.
struct PackedPlan {
  bool refused = false;
  std::string content;
  bool operator==(const PackedPlan&) const = default;
};
// By DnnOperation::key().
using PackedPlans = std::map<std::string, PackedPlan>;
std::string pack(const PackedPlans& plans);
// Stops at what it does not understand: such plans are made anew.
PackedPlans unpack(const std::string& text);

}  // namespace ringtrain::cuda
