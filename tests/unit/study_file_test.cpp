// Tests the reader of study files: which files it accepts, and its error messages for the others.
#include "study/study_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/unit/good_experiment.h"
#include "tests/unit/with_environment.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

class StudyFile : public WithFolder {
 protected:
  void SetUp() override {
    WithFolder::SetUp();
    std::ofstream(path("exp.yaml")) << good;
  }
  // Reads a study. `rest` follows the two lines with which every study begins.
  Study read(const std::string& rest, const std::vector<std::string>& overrides = {}) const {
    return parse_study("name: s\nexperiment: exp.yaml\n" + rest, path("s.yaml"), overrides);
  }
  std::string refusal(const std::string& rest, const std::vector<std::string>& overrides = {}) const {
    std::string message = message_of([&] { read(rest, overrides); });
    for (auto at = message.find(path("")); at != std::string::npos; at = message.find(path("")))
      message.erase(at, path("").size());
    return message;
  }
};

TEST_F(StudyFile, AllKeysAreRead) {
  const Study study = read(
      "seed: 7\n"
      "ranks_per_trial: [1, 2]\n"
      "vary:\n"
      "  batch.global: [64, 128]\n"
      "  learning_rate.milestones: [[3, 6], [5]]\n"
      "  optimizer.beta2: {uniform: [0.9, 0.99]}\n"
      "  recipe:\n"
      "    plain: {}\n"
      "    lars: {optimizer.kind: lars, optimizer.no_decay: [norm]}\n"
      "draws: {count: 4, sequence: halton}\n"
      "repeat: 3\n"
      "rules:\n"
      "  - learning_rate.base: 0.1 * batch.global / 256\n"
      "  - ranks <= 2\n"
      "search: halving\n"
      "limits: {samples: 1000, seconds: 60, target: {validation_loss: 1.5}}\n");
  EXPECT_EQ(study.name, "s");
  EXPECT_EQ(study.seed, 7u);
  ASSERT_EQ(study.axes.size(), 4u);
  EXPECT_EQ(study.axes[0].name, "ranks_per_trial");
  EXPECT_EQ(study.axes[1].choices[1].settings[0].value, "128");
  EXPECT_EQ(study.axes[1].choices[1].settings[0].place, path("s.yaml:6:22: "));
  EXPECT_EQ(study.axes[2].choices[0].settings[0].value, "[3, 6]");
  EXPECT_TRUE(study.axes[3].is_group);
  EXPECT_EQ(study.axes[3].choices[1].settings[1].value, "[norm]");
  ASSERT_EQ(study.draws.keys.size(), 1u);
  EXPECT_EQ(study.draws.count, 4u);
  EXPECT_EQ(study.draws.sequence, Sequence::halton);
  ASSERT_EQ(study.seeds.size(), 3u);
  EXPECT_EQ(study.seeds[2].value, "3");
  ASSERT_EQ(study.rules.size(), 1u);
  EXPECT_EQ(study.rules[0].expression.place().column, 25);
  ASSERT_EQ(study.conditions.size(), 1u);
  EXPECT_EQ(study.search, Search::halving);
  EXPECT_EQ(study.limits.samples->text(), "1000");
  EXPECT_EQ(study.limits.settings.size(), 3u);
  EXPECT_TRUE(study.sets("optimizer.kind"));
  EXPECT_TRUE(study.sets("learning_rate.base"));
  EXPECT_FALSE(study.sets("model.hidden"));
}

TEST_F(StudyFile, ABranchIsAnAxisOfPointsAndBatches) {
  const Study study =
      read("branch: {from: results/s/parent, at: [0.5, 20 steps], batch: [x1, 4], samples: 100, rate: sqrt}\n");
  ASSERT_EQ(study.axes.size(), 1u);
  const Axis& axis = study.axes[0];
  EXPECT_EQ(axis.name, "at");
  std::vector<std::string> names;
  for (const Choice& choice : axis.choices) names.push_back(choice.name);
  EXPECT_EQ(names, (std::vector<std::string>{"0.5_x1", "0.5_x4", "20steps_x1", "20steps_x4"}));
  std::string text;
  for (const Setting& setting : axis.choices[3].settings) text += setting.key + "=" + setting.value + " ";
  EXPECT_EQ(text,
            "branch.from=results/s/parent@20steps batch.global=256 branch.batch_factor=4 branch.rate_factor=2 "
            "branch.samples=100 ");
  // If the study does not set the factor, it depends on the optimizer. As in Merrill et al., it is k for SGD and sqrt k
  // for Adam.
  const auto factor = [&](const std::vector<std::string>& overrides) {
    return read("branch: {from: r, at: 1, batch: x4, samples: 100}\n", overrides).axes[0].choices[0].settings[3].value;
  };
  EXPECT_EQ(factor({}), "2");
  EXPECT_EQ(factor({"optimizer.kind=sgd"}), "4");
}

TEST_F(StudyFile, ABranchTakesTheExperimentOfItsRun) {
  std::filesystem::create_directories(folder_ / "run");
  std::ofstream(path("run/experiment.yaml")) << good << "run: {dir: run}\ncheckpoint: {keep_at: [1]}\n";
  const std::string text = "name: s\nbranch: {from: run, at: [1], batch: [x1], samples: 64}\n";
  const std::string message = message_of([&] { parse_study(text, path("s.yaml"), {}); });
  expect_contains(message, "s.yaml:2:26: ");
  expect_contains(
      message, "run: there is no checkpoint at 1 epoch, and none at another point [train with checkpoint.keep_at: [1]");
  expect_contains(
      message_of(
          [&] { parse_study("name: s\nbranch: {from: elsewhere, at: 1, batch: x1, samples: 9}\n", "s.yaml", {}); }),
      "s.yaml:2:16: there is no run in elsewhere, expected a run's folder, or the key experiment [The program looks");
}

TEST_F(StudyFile, ABudgetIsTheLengthOfEveryTrial) {
  const Study study = read("search: halving\nbudget: {samples: 6400, factor: 2, first: 640}\n");
  EXPECT_EQ(study.budget->factor, 2);
  EXPECT_EQ(study.budget->first, 640);
  EXPECT_EQ(study.limits.samples->text(), "6400");
}

TEST_F(StudyFile, WhatABranchAndABudgetCannotBeIsNamedWithItsPlace) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"branch: {from: r, at: [1], batch: [x1]}\n",
       "s.yaml:3:9: branch has no samples, expected from, at, batch and samples"},
      {"branch: {form: r}\n", "s.yaml:3:10: unknown key 'form'; did you mean 'from'?"},
      {"branch: {from: r, at: [1, soon], batch: [x1], samples: 9}\n",
       "s.yaml:3:27: at is 'soon', expected a number of epochs"},
      {"branch: {from: r, at: [1, 1.0], batch: [x1], samples: 9}\n",
       "s.yaml:3:27: at is '1.0', expected each point once"},
      {"branch: {from: r, at: [1], batch: [x1, y2], samples: 9}\n", "s.yaml:3:40: batch is 'y2', expected multiples"},
      {"branch: {from: r, at: [1], batch: [x1, 1], samples: 9}\n",
       "s.yaml:3:40: batch is '1', expected each multiple once"},
      {"branch: {from: r, at: [1], batch: [x1], samples: 9, rate: cubic}\n",
       "s.yaml:3:59: rate is 'cubic', expected one of sqrt"},
      {"branch: {from: r, at: [1], batch: [x1], samples: 9}\nrepeat: 2\n", "s.yaml:4:1: repeat together with branch"},
      {"branch: {from: r, at: [1], batch: [x1], samples: 9}\nlimits: {epochs: 2}\n",
       "s.yaml:4:1: limits by epochs or samples together with branch"},
      {"branch: {from: r, at: [1], batch: [x1], samples: 9}\nvary: {batch.global: [64]}\n",
       "batch.global is already set at line 3"},
      {"budget: {samples: 9}\n", "s.yaml:3:1: budget without search: halving"},
      {"search: halving\nbudget: {factor: 2}\n", "s.yaml:4:9: budget has no samples"},
      {"search: halving\nbudget: {samples: 9, factor: 1}\n", "s.yaml:4:30: factor is '1', expected an integer from 2"},
      {"search: halving\nbudget: {samples: 9, within: model.kind}\n",
       "s.yaml:4:30: within is 'model.kind', expected a key whose value"},
      {"search: halving\nbudget: {samples: 9, within: stop.steps}\n",
       "s.yaml:4:30: within is 'stop.steps', expected a key that the study"},
      {"search: halving\nbudget: {samples: 9 * bath.global}\n", "s.yaml:4:23: unknown key 'bath.global'"},
      {"search: halving\nbudget: {sample: 9}\n", "s.yaml:4:10: unknown key 'sample'; did you mean 'samples'?"},
      {"search: halving\nbudget: {samples: 9}\nlimits: {samples: 9}\n", "s.yaml:4:1: budget together with limits"},
  };
  for (const auto& [rest, expected] : cases) expect_contains(refusal(rest), expected);
}

TEST_F(StudyFile, TheExperimentLiesBesideTheStudyOrInTheWorkingDirectory) {
  EXPECT_EQ(read("").base.values().batch.global, 64);
  EXPECT_EQ(read("", {"batch.global=128"}).base.values().batch.global, 128);
  const std::string here = std::filesystem::relative(path("exp.yaml")).string();
  for (const std::string& given : {path("exp.yaml"), here})
    EXPECT_EQ(parse_study("name: s\nexperiment: " + given + "\n", path("deeper/s.yaml"), {}).base.values().batch.global,
              64);
}

TEST_F(StudyFile, EveryMistakeHasItsOwnMessage) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      // The file.
      {"ropeat: 3\n", "s.yaml:3:1: unknown key 'ropeat'; did you mean 'repeat'? [Keys of a study: name, experiment"},
      {"batch.global: 3\n",
       "s.yaml:3:1: unknown key 'batch.global'; it is a key of the experiment, to be varied below"},
      {"seed: 1\nseed: 2\n", "s.yaml:4:1: the key 'seed' is given twice"},
      {"vary:\n\tx: 1\n", "s.yaml:4:3: not valid YAML: a tab in the indentation"},
      {"---\nname: t\n", "s.yaml:3:1: more text after the study's end"},
      {"vary: [1, 2]\n", "s.yaml:3:7: vary is a list, expected a map such as batch.global: [256, 1024]"},
      {"vary:\n", "vary has no value, expected a map"},
      {"search: best\n", "s.yaml:3:9: search is 'best', expected one of all, halving"},
      // Keys.
      {"vary: {batch.globl: [1]}\n", "s.yaml:3:8: unknown key 'batch.globl'; did you mean 'batch.global'?"},
      {"vary: {rank_per_trial: [1]}\n", "s.yaml:3:8: unknown key 'rank_per_trial'; did you mean 'ranks_per_trial'?"},
      {"vary: {batch: [1]}\n", "s.yaml:3:8: batch is a section, expected its keys with a dot [batch.global: [...]]"},
      {"vary: {run.dir: [a, b]}\n", "s.yaml:3:8: run.dir cannot be varied: the study sets it itself"},
      {"vary: {batch.global: []}\n", "s.yaml:3:22: batch.global is an empty list"},
      {"vary: {batch.global: }\n", "s.yaml:3:8: batch.global has no value, expected a list of values"},
      {"vary: {batch.global: [[[[1]]]]}\n", "expected a value of this key"},
      {"ranks_per_trial: 2\nvary: {ranks_per_trial: [1]}\n",
       "s.yaml:4:8: ranks_per_trial is already set at line 3, expected in one place"},
      {"vary:\n  batch.global: [1]\n  a:\n    x: {seed: 2}\n    y: {batch.global: 2}\n",
       "s.yaml:7:9: batch.global is already set at line 4, expected in one place"},
      {"vary: {seed: [1, 2]}\nrepeat: 2\n", "s.yaml:4:1: seed is already set at line 3"},
      {"vary: {batch.global: [1]}\nrules: {batch.global: 2}\n", "s.yaml:4:9: batch.global is already set at line 3"},
      {"vary: {stop.steps: [1]}\nlimits: {epochs: 2}\n", "s.yaml:4:1: stop.steps is already set at line 3"},
      // Ranges and groups.
      {"vary: {model.kind: {uniform: [1, 2]}}\n", "s.yaml:3:20: model.kind is not a number, expected a list"},
      {"vary: {seed: {unifrom: [1, 2]}}\n", "s.yaml:3:15: unknown key 'unifrom'; did you mean 'uniform'?"},
      {"vary: {seed: {uniform: [2, 1]}}\ndraws: {count: 2}\n", "s.yaml:3:24: uniform is a list, expected [lowest, "},
      {"vary: {seed: {uniform: [1]}}\n", "s.yaml:3:24: uniform is a list, expected [lowest, highest]"},
      {"vary: {seed: {log_uniform: [0, 1]}}\n", "s.yaml:3:29: log_uniform is '0', expected numbers above 0"},
      {"vary: {seed: {uniform: [1, 2], grid: [1, 2]}}\n",
       "s.yaml:3:32: grid together with uniform, expected one of them"},
      {"vary: {seed: {uniform: [1, 2]}}\n", "s.yaml:3:14: seed is drawn, but draws is not given [draws: {count: 16"},
      {"vary: {seed: {uniform: [1, 2], points: 3}}\n", "s.yaml:3:14: seed: points with values that are drawn"},
      {"vary: {seed: {grid: [1, 2], points: 1}}\n", "s.yaml:3:37: points is '1', expected"},
      {"vary: {seed: {grid: [1, 2]}}\n", "s.yaml:3:14: seed: a grid without points, expected points: 4"},
      {"vary: {seed: {uniform: [5, 7], multiple_of: 10}}\n", "s.yaml:3:14: seed: no multiple of 10 lies from 5 to 7"},
      {"vary: {learning_rate.base: {uniform: [5, 7], multiple_of: 10}}\n",
       "multiple_of with learning_rate.base, which"},
      {"draws: {count: 4}\n", "s.yaml:3:1: draws, but no key is drawn"},
      {"vary: {batch.global: {a: {seed: 2}}}\n", "batch.global has cases below it, but is a key of the experiment"},
      {"vary: {model: {a: {seed: 2}}}\n", "model has cases below it, but is a section of the experiment"},
      {"vary: {a b: {x: {seed: 2}}}\n", "s.yaml:3:8: 'a b': expected a name of letters"},
      {"vary: {a: {x/y: {seed: 2}}}\n", "s.yaml:3:12: 'x/y': expected a name of letters"},
      // Repeats and limits.
      {"repeat: 0\n", "s.yaml:3:9: repeat is '0', expected an integer from 1 to 10000"},
      {"repeat: 1e2\n", "s.yaml:3:9: repeat is '1e2', expected an integer from 1 to 10000"},
      {"repeat: []\n", "s.yaml:3:9: repeat is a list, expected how often, or a list of seeds"},
      {"limits: {epoch: 2}\n", "s.yaml:3:10: unknown key 'epoch'; did you mean 'epochs'?"},
      {"limits: {samples: 1.5}\n", "s.yaml:3:19: samples is '1.5', expected an integer from 1"},
      {"limits: {target: 1.5}\n", "s.yaml:3:18: target is '1.5', expected a map such as {validation_loss: 1.5}"},
      // Rules.
      {"rules: {learning_rate.bas: 1}\n", "s.yaml:3:9: unknown key 'learning_rate.bas'; did you mean"},
      {"rules: {model.kind: 1}\n", "s.yaml:3:9: model.kind is not a number, and a rule gives a number"},
      {"rules: {learning_rate.base: [1]}\n", "s.yaml:3:29: learning_rate.base is a list, expected an expression"},
      {"rules: {learning_rate.base: 2 * batch.globl}\n", "s.yaml:3:33: unknown key 'batch.globl'; did you mean"},
      {"rules: {learning_rate.base: 2 * model.kind}\n",
       "s.yaml:3:33: model.kind is not a number, and a rule calculates"},
      {"rules: {learning_rate.base: \"2 * (3\"}\n", "s.yaml:3:36: the ( at column 34 is not closed"},
      {"rules:\n  learning_rate.base: 2 *\n    3\n", "s.yaml:4:23: an expression of several lines"},
      {"rules:\n  - ranks * 2\n", "s.yaml:4:14: no comparison, expected one of = < <= > >="},
      {"rules:\n  - ranks = 2 * batch_per_rnk\n", "s.yaml:4:17: unknown key 'batch_per_rnk'; did you mean"},
  };
  for (const auto& [rest, expected] : cases) expect_contains(refusal(rest), expected);
}

TEST_F(StudyFile, NameAndExperimentAreChecked) {
  const auto message = [&](const std::string& yaml) {
    return message_of([&] { parse_study(yaml, path("s.yaml"), {}); });
  };
  expect_contains(message("experiment: exp.yaml\n"), ":1:1: name is missing");
  expect_contains(message("name: s\n"), ":1:1: experiment is missing");
  expect_contains(message("name: a/b\nexperiment: exp.yaml\n"), ":1:7: name is 'a/b', expected at most 100 letters");
  for (const std::string name : {"reference", "studies", "bench"})
    expect_contains(message("name: " + name + "\nexperiment: exp.yaml\n"),
                    ":1:7: name is '" + name + "', expected another");
  expect_contains(message("name: s\nexperiment: no.yaml\n"), ":2:13: there is no experiment file ");
  {
    const WithEnvironment set({{"MY_EXPERIMENTS", path("")}});
    EXPECT_EQ(message("name: s\nexperiment: $MY_EXPERIMENTS/exp.yaml\n"), "(no error)");
    expect_contains(message("name: s\nbranch: {from: $MY_EXPERIMENTS/elsewhere, at: 1, batch: [x1], samples: 9}\n"),
                    "there is no run in " + path("") + "/elsewhere");
  }
  expect_contains(
      message("name: s\nexperiment: $MY_EXPERIMENTS/exp.yaml\n"),
      ":2:13: experiment is $MY_EXPERIMENTS/exp.yaml but the environment variable MY_EXPERIMENTS is not set");
  expect_contains(message("name: s\nexperiment: [a]\n"), ":2:13: experiment is a list, expected the path");
  expect_contains(message(""), ":1:1: the file is empty, expected a study");
  expect_contains(message("words\n"), ":1:1: the file is 'words', expected a map such as name: my-study");
  std::ofstream(path("bad.yaml")) << "name: x\nbatch: {globl: 3}\n";
  expect_contains(message("name: s\nexperiment: bad.yaml\n"), "bad.yaml:2:9: unknown key 'batch.globl'");
  expect_contains(message_of([] { read_study("nowhere.yaml", {}); }),
                  "nowhere.yaml:1:1: cannot be opened, expected a study");
}

TEST_F(StudyFile, AKeyOfTheCommandLineIsNotVaried) {
  expect_contains(refusal("vary: {batch.global: [64, 128]}\n", {"batch.global=32"}),
                  "s.yaml:3:8: batch.global is already set by the command line");
  expect_contains(refusal("", {"batch.globl=32"}), "override 'batch.globl=32': unknown key");
}

TEST_F(StudyFile, TenKeysCanBeDrawn) {
  std::string vary = "vary:\n";
  for (const char* key : {"seed", "batch.global", "batch.worker", "model.hidden", "model.layers", "model.depth",
                          "data.pad", "data.reads", "data.resize", "data.prefetch"})
    vary += std::string("  ") + key + ": {uniform: [1, 9]}\n";
  EXPECT_EQ(read(vary + "draws: {count: 3}\n").draws.keys.size(), 10u);
  expect_contains(refusal(vary + "  model.width: {uniform: [1, 9]}\ndraws: {count: 3}\n"),
                  "s.yaml:14:3: model.width is one drawn key too many, expected at most 10");
}

}  // namespace
}  // namespace ringtrain
