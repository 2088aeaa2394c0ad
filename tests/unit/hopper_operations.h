// The operations for which the models would ask the library of convolutions for Hopper. They are the works of every
// 16-bit convolution among the plans of cuDNN that are recorded for an H200, with 8 groups of the 32 samples that batch
// norm normalises together. A weight gradient has one group of all samples. build/bench/hopper_plans writes the answers
// to src/backend/cuda/device/recorded/hopper_plans.csv. A test compares this record with the library where the library
// is built.
#pragma once

#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "backend/cuda/hopper/plans.h"
#include "base/error.h"
#include "tests/unit/recorded_rows.h"

namespace ringtrain::cuda {

inline constexpr const char* hopper_plans_header = "operation,answer,workspace_bytes,instance or reason";

// The kinds of work for one convolution: forward, two data gradients, and the weight gradient in two types.
inline std::vector<DnnOperation> hopper_works(DnnOperation convolution) {
  DnnOperation o = convolution;
  o.engine = Engine::hopper;
  o.prologue = Prologue::none;
  o.result = Type::fp32;
  std::vector<DnnOperation> all;
  o.kind = DnnKind::convolution;
  o.epilogue = Epilogue::sums;
  all.push_back(o);
  o.kind = DnnKind::data_gradient;
  for (const Epilogue epilogue : {Epilogue::relu_sums, Epilogue::add_relu_sums}) {
    o.epilogue = epilogue;
    all.push_back(o);
  }
  o.kind = DnnKind::weight_gradient;
  o.epilogue = Epilogue::none;
  o.groups = 1;
  for (const Type result : {Type::fp32, o.type}) {
    o.result = result;
    all.push_back(o);
  }
  return all;
}

inline std::vector<DnnOperation> hopper_operations(const std::string& recorded_plans) {
  std::vector<DnnOperation> all;
  std::set<std::string> seen;
  for (const std::string& row : recorded_rows(recorded_plans, "h200")) {
    std::istringstream fields(row);
    std::string key;
    for (int i = 0; i < 4; ++i) std::getline(fields, key, ',');
    if (!key.starts_with("conv ")) continue;
    DnnOperation o = parse_operation(key);
    if (o.type == Type::fp32) continue;
    o.groups = 8;
    o.n = 32 * o.groups;
    for (const DnnOperation& work : hopper_works(o))
      if (seen.insert(work.key()).second) all.push_back(work);
  }
  return all;
}

// Returns a row of the record. Throws Error where there is no library.
inline std::string hopper_line(const DnnOperation& operation) {
  std::string why;
  const hopper::Library* library = hopper::Library::find(&why);
  if (library == nullptr) throw Error(why);
  const auto problem = hopper::problem_of(operation, &why);
  const auto choice = problem ? library->choose(*problem, &why) : std::nullopt;
  for (char& c : why)
    if (c == ',') c = ';';
  if (!choice) return cat(operation.key(), ",refused,0,", why);
  return cat(operation.key(), ",found,", choice->workspace_bytes, ",",
             library->instances()[static_cast<std::size_t>(choice->instance)].name);
}

}  // namespace ringtrain::cuda
