// Reads tests/golden/*.json for tests.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/unit/repository.h"

namespace ringtrain {

inline nlohmann::json golden(const std::string& name) {
  std::ifstream file(repository() / "tests/golden" / name);
  EXPECT_TRUE(file.good()) << name;
  return nlohmann::json::parse(file);
}

inline std::vector<double> values(const nlohmann::json& tensor) {
  return tensor.at("values").get<std::vector<double>>();
}

}  // namespace ringtrain
