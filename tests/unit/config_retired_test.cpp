// Tests retired keys in experiments that runs have stored.
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "config/reader.h"
#include "tests/unit/good_experiment.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

class ConfigRetired : public WithFolder {};

std::string with_decay(const std::string& value) {
  return good + "optimizer: {kind: sgd, decay_norm_and_bias: " + value + "}\n";
}

TEST_F(ConfigRetired, WhatARunHasStoredMeansWhatItMeantThen) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(parse_stored_experiment(with_decay("true"), "c.h5", {}).optimizer.no_decay, Words{});
  EXPECT_EQ(parse_stored_experiment(with_decay("false"), "c.h5", {}).optimizer.no_decay, (Words{"norm", "bias"}));
  EXPECT_EQ(parse_stored_experiment(with_decay("true"), "c.h5", {"optimizer.no_decay=[norm]"}).optimizer.no_decay,
            Words{"norm"});
  EXPECT_THROW(parse_stored_experiment(with_decay("maybe"), "c.h5", {}), Error);
  EXPECT_THROW(parse_stored_experiment(with_decay("[true]"), "c.h5", {}), Error);
}

TEST_F(ConfigRetired, InAUsersFileTheyAreErrorsThatNameTheNewKey) {
  try {
    parse_experiment(with_decay("true"), "exp.yaml", {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what())
                  .find("exp.yaml:8:24: optimizer.decay_norm_and_bias is no longer a key, "
                        "expected optimizer.no_decay"),
              std::string::npos)
        << error.what();
    EXPECT_NE(error.hint().find("no_decay: []"), std::string::npos) << error.hint();
  }
  EXPECT_THROW(parse_stored_experiment(good, "c.h5", {"optimizer.decay_norm_and_bias=true"}), Error);
}

// Users continue a run with `train RUN/experiment.yaml --resume`.
TEST_F(ConfigRetired, TheFileOfARunsFolderIsReadAndAUsersOwnIsNot) {
  const std::string file = path("experiment.yaml");
  std::ofstream(file) << with_decay("true");
  EXPECT_THROW(read_experiment(file, {}), Error);
  std::ofstream(path("run.json")) << "{}";
  EXPECT_TRUE(read_experiment(file, {}).optimizer.no_decay.empty());
}

}  // namespace
}  // namespace ringtrain
