// Reads tests/golden/*.json for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ringtrain {

inline nlohmann::json golden(const std::string& name) {
  const char* root = std::getenv("RINGTRAIN_ROOT");
  std::ifstream file(std::string(root == nullptr ? "." : root) + "/tests/golden/" + name);
  EXPECT_TRUE(file.good()) << name;
  return nlohmann::json::parse(file);
}

inline std::vector<double> values(const nlohmann::json& tensor) {
  return tensor.at("values").get<std::vector<double>>();
}

}  // namespace ringtrain
