// What invalid experiments are told.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "config/reader.h"

namespace ringtrain {

// An experiment file, overrides, and the error that they must give.
struct BadExperiment {
  std::string yaml;
  std::vector<std::string> overrides;
  std::string what;
};

inline std::string reading_error(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  try {
    parse_experiment(yaml, "exp.yaml", overrides);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

}  // namespace ringtrain
