// Tests the reader of experiment files: which files it accepts, and its error messages for the others.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "config/reader.h"
#include "config/schema.h"
#include "config/schema_text.h"
#include "tests/unit/bad_experiment.h"
#include "tests/unit/good_experiment.h"
#include "tests/unit/with_environment.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

TEST(ConfigReader, EveryBadFileEndsWithItsOwnMessage) {
  const std::string i32 = "an integer from 1 to 2147483647";
  const std::string pairs =
      "expected a list of pairs such as [[0, 1], [30, 0.1]], each an epoch of at least 0 and a number from 0 to "
      "1000000";
  const std::string kinds = "one of sgd, lars, adam, adamw, lamb, rmsprop, rmsprop_to_sgd, muon";
  const std::string kinds_of_parameters = "a list such as [norm, bias] of different words, each one of norm, bias";
  const std::vector<BadExperiment> cases = {
      // The file itself.
      {"", {}, "exp.yaml:1:1: the file is empty, expected an experiment"},
      {"# only a comment\n", {}, "exp.yaml:1:1: the file is empty, expected an experiment"},
      {"just words\n", {}, "exp.yaml:1:1: the file is 'just words', expected a map of keys such as name: my-study"},
      {"- name\n- seed\n", {}, "exp.yaml:1:1: the file is a list, expected a map of keys such as name: my-study"},
      {good + "\tseed: 1\n", {}, "exp.yaml:8:2: not valid YAML: a tab in the indentation, expected spaces"},
      {good + "---\nname: two\n", {}, "exp.yaml:8:1: more text after the experiment's end, expected one YAML document"},
      {"a note without its mark\n# more\n" + good,
       {},  // LoadAll of yaml-cpp 0.7 never returned for this text
       "exp.yaml:3:1: more text after the experiment's end, expected one YAML document"},
      {good + "? [a, b]\n: 1\n", {}, "exp.yaml:8:3: a key that is not a word, expected a key such as seed"},
      // These texts lack the space after a colon, or the colon. The parser complains about the next line, but the
      // message must name the line with the mistake.
      {good + "model:\n  depth:50\n  width: 64\n",
       {},
       "exp.yaml:9:3: not valid YAML: 'depth:50' has no space after the colon, expected depth: 50"},
      {good + "model:\n  kind: resnet\n  depth 50  # layers\n\n  # and\n  width: 64\n",
       {},
       "exp.yaml:10:3: not valid YAML: 'depth 50' has no colon, expected depth: 50"},
      {good + "model:\n  kind: resnet\n  depth:50\nseed: 1\n",
       {},
       "exp.yaml:10:3: not valid YAML: 'depth:50' has no space after the colon, expected depth: 50"},
      {good + "model:\n  hidden=32\n  layers: 2\n",
       {},
       "exp.yaml:9:3: not valid YAML: 'hidden=32' has no colon, expected hidden: 32"},
      {good + "model\n  kind: resnet\n",
       {},
       "exp.yaml:8:1: not valid YAML: 'model' has no colon, expected model: and a value"},
      {"name:e\n" + good, {}, "exp.yaml:1:1: not valid YAML: 'name:e' has no space after the colon, expected name: e"},
      {good + "model:\n  depth:50\n  width:64\n",
       {},
       "exp.yaml:9:3: 'depth:50' has no space after the colon, expected depth: 50"},
      {good + "model: {depth:50}\n", {}, "exp.yaml:8:9: 'depth:50' has no space after the colon, expected depth: 50"},
      {good + "precision:fp32\n",
       {},
       "exp.yaml:8:1: 'precision:fp32' has no space after the colon, expected precision: fp32"},
      {good + "data:\n  train: a: b\n", {}, "exp.yaml:9:11: not valid YAML: illegal map value"},
      // Keys.
      {good + "lr: 0.1\n", {}, "exp.yaml:8:1: unknown key 'lr'; did you mean 'learning_rate.base'?"},
      {good + "batch_size: 32\n", {}, "exp.yaml:8:1: unknown key 'batch_size'; did you mean 'batch.global'?"},
      {good + "epochs: 3\n", {}, "exp.yaml:8:1: unknown key 'epochs'; did you mean 'stop.epochs'?"},
      {good + "sede: 3\n", {}, "exp.yaml:8:1: unknown key 'sede'; did you mean 'seed'?"},
      {good + "quux_frobnicator: 3\n", {}, "exp.yaml:8:1: unknown key 'quux_frobnicator'"},
      {good + "optimiser:\n  kind: sgd\n", {}, "exp.yaml:8:1: unknown key 'optimiser'; did you mean 'optimizer'?"},
      {good + "model:\n  hiden: 8\n", {}, "exp.yaml:9:3: unknown key 'model.hiden'; did you mean 'model.hidden'?"},
      {good + "optimizer:\n  lr: 0.1\n",
       {},
       "exp.yaml:9:3: unknown key 'optimizer.lr'; did you mean 'learning_rate.base'?"},
      {good + "evaluate:\n  every_epoch: 1\n",
       {},
       "exp.yaml:9:3: unknown key 'evaluate.every_epoch'; did you mean 'evaluate.every_epochs'?"},
      {good + "model.hidden: 8\n",
       {},
       "exp.yaml:8:1: unknown key 'model.hidden', expected hidden below model: (dots are for overrides)"},
      {good + "learning_rate: 0.1\n",
       {},
       "exp.yaml:8:16: learning_rate is '0.1', expected keys of this section below it; did you mean "
       "'learning_rate.base'?"},
      {good + "optimizer:\n", {}, "exp.yaml:8:1: optimizer has no value, expected keys of this section below it"},
      {good + "name: again\n", {}, "exp.yaml:8:1: the key 'name' is given twice, first at line 1, expected once"},
      {replaced(good, "  worker", "  global: 64\n  worker"),
       {},
       "exp.yaml:6:3: the key 'batch.global' is given twice, first at line 5, expected once"},
      {good + "batch: {micro: 1}\n",
       {},
       "exp.yaml:8:1: the key 'batch' is given twice, first at line 4, expected once"},
      // Required keys.
      {replaced(good, "  worker: 16\n", ""), {}, "exp.yaml:4:1: batch.worker is missing, expected " + i32},
      {replaced(good, "name: study\n", ""),
       {},
       "exp.yaml:1:1: name is missing, expected at most 100 letters, digits, '.', '_' and '-' that do not start with "
       "'.'"},
      {replaced(good, "data:\n  train: some/train\n", ""), {}, "exp.yaml:1:1: data.train is missing, expected text"},
      {replaced(good, "some/train", "''"), {}, "exp.yaml:3:10: data.train is '' in quotes, expected text"},
      // Types.
      {replaced(good, "64", "abc"), {}, "exp.yaml:5:11: batch.global is 'abc', expected " + i32},
      {replaced(good, "64", "64.0"), {}, "exp.yaml:5:11: batch.global is '64.0', expected " + i32},
      {replaced(good, "64", "1e3"), {}, "exp.yaml:5:11: batch.global is '1e3', expected " + i32},
      {replaced(good, "64", "1_000"), {}, "exp.yaml:5:11: batch.global is '1_000', expected " + i32},
      {replaced(good, "64", "0x40"), {}, "exp.yaml:5:11: batch.global is '0x40', expected " + i32},
      {replaced(good, "64", "064"), {}, "exp.yaml:5:11: batch.global is '064', expected " + i32},
      {replaced(good, "64", "\"64\""), {}, "exp.yaml:5:11: batch.global is '64' in quotes, expected " + i32},
      {replaced(good, "64", "[64]"), {}, "exp.yaml:5:11: batch.global is a list, expected " + i32},
      {replaced(good, "64", "{n: 64}"), {}, "exp.yaml:5:11: batch.global is a map, expected " + i32},
      {replaced(good, "global: 64", "global:"), {}, "exp.yaml:5:3: batch.global has no value, expected " + i32},
      {good + "data2: 1\n", {}, "exp.yaml:8:1: unknown key 'data2'"},
      {good + "optimizer: {nesterov: yes}\n", {}, "exp.yaml:8:23: optimizer.nesterov is 'yes', expected true or false"},
      {good + "checkpoint: {best: 1}\n", {}, "exp.yaml:8:20: checkpoint.best is '1', expected true or false"},
      {good + "checkpoint: {best: True}\n", {}, "exp.yaml:8:20: checkpoint.best is 'True', expected true or false"},
      {good + "optimizer: {no_decay: norm}\n",
       {},
       "exp.yaml:8:23: optimizer.no_decay is 'norm', expected " + kinds_of_parameters},
      {good + "optimizer: {no_decay: [norm, weight]}\n",
       {},
       "exp.yaml:8:30: optimizer.no_decay item 2 is 'weight', expected " + kinds_of_parameters},
      {good + "optimizer: {no_decay: [bias, bias]}\n",
       {},
       "exp.yaml:8:30: optimizer.no_decay item 2 is 'bias', expected " + kinds_of_parameters},
      {good,
       {"optimizer.no_decay=norm"},
       "override 'optimizer.no_decay=norm': optimizer.no_decay is 'norm', expected " + kinds_of_parameters},
      {good,
       {"optimizer.no_decay=[norm, gamma]"},
       "override 'optimizer.no_decay=[norm, gamma]': optimizer.no_decay item 2 is 'gamma', expected " +
           kinds_of_parameters},
      {good + "optimizer: {kind: lion}\n", {}, "exp.yaml:8:19: optimizer.kind is 'lion', expected " + kinds},
      {good + "optimizer: {kind: ADAM}\n", {}, "exp.yaml:8:19: optimizer.kind is 'ADAM', expected " + kinds},
      {good + "model: {kind: resnet50}\n",
       {},
       "exp.yaml:8:15: model.kind is 'resnet50', expected one of char_lstm, resnet, alexnet, cnn, mlp"},
      {good + "precision: 16\n", {}, "exp.yaml:8:12: precision is '16', expected one of fp32, tf32, bf16, fp16"},
      {good + "run: {dir: }\n", {}, "exp.yaml:8:7: run.dir has no value, expected text (\"\" for none)"},
      {good + "run: {dir: \"a\\nb\"}\n",
       {},
       "exp.yaml:8:12: run.dir has the byte 0x0a (a new line) after 'a', expected one line of UTF-8: a run's records "
       "could not be read "
       "back"},
      {replaced(good, "study", "my study"),
       {},
       "exp.yaml:1:7: name is 'my study', expected at most 100 letters, digits, '.', '_' and '-' that do not start "
       "with '.'"},
      {replaced(good, "study", ".."),
       {},
       "exp.yaml:1:7: name is '..', expected at most 100 letters, digits, '.', '_' and '-' that do not start with '.'"},
      {good + "run: {id: a/b}\n",
       {},
       "exp.yaml:8:11: run.id is 'a/b', expected at most 100 letters, digits, '.', '_' and '-' that do not start with "
       "'.'"},
      // Ranges.
      {replaced(good, "64", "0"), {}, "exp.yaml:5:11: batch.global is '0', expected " + i32},
      {replaced(good, "64", "-64"), {}, "exp.yaml:5:11: batch.global is '-64', expected " + i32},
      {replaced(good, "64", "2147483648"), {}, "exp.yaml:5:11: batch.global is '2147483648', expected " + i32},
      {replaced(good, "64", "99999999999999999999"),
       {},
       "exp.yaml:5:11: batch.global is '99999999999999999999', expected " + i32},
      {good + "seed: -1\n", {}, "exp.yaml:8:7: seed is '-1', expected an integer from 0 to 18446744073709551615"},
      {good + "seed: 18446744073709551616\n",
       {},
       "exp.yaml:8:7: seed is '18446744073709551616', expected an integer from 0 to 18446744073709551615"},
      {good + "model: {dropout: 1}\n",
       {},
       "exp.yaml:8:18: model.dropout is '1', expected a number of at least 0 and less than 1"},
      {good + "optimizer: {clip_norm: -1}\n",
       {},
       "exp.yaml:8:24: optimizer.clip_norm is '-1', expected a number from 0 to 1000000000"},
      {good + "learning_rate: {base: 0}\n",
       {},
       "exp.yaml:8:23: learning_rate.base is '0', expected a number greater than 0 and at most 1000000"},
      {good + "learning_rate: {base: .nan}\n",
       {},
       "exp.yaml:8:23: learning_rate.base is '.nan', expected a number greater than 0 and at most 1000000"},
      {good + "learning_rate: {base: inf}\n",
       {},
       "exp.yaml:8:23: learning_rate.base is 'inf', expected a number greater than 0 and at most 1000000"},
      {good + "learning_rate: {base: 1e999}\n",
       {},
       "exp.yaml:8:23: learning_rate.base is '1e999', expected a number greater than 0 and at most 1000000"},
      {good + "learning_rate: {base: 0,1}\n",
       {},
       "exp.yaml:8:23: learning_rate.base is '0', expected a number greater than 0 and at most 1000000"},
      {good + "evaluate: {every_epochs: -1}\n",
       {},
       "exp.yaml:8:26: evaluate.every_epochs is '-1', expected a number from 0 to 1000000"},
      {good + "learning_rate: {schedule: step, milestones: [3, x]}\n",
       {},
       "exp.yaml:8:49: learning_rate.milestones item 2 is 'x', expected a list of numbers such as [30, 60, 80], each "
       "greater than 0 and at most 1000000"},
      {good + "learning_rate: {schedule: step, milestones: 3}\n",
       {},
       "exp.yaml:8:45: learning_rate.milestones is '3', expected a list of numbers such as [30, 60, 80], each greater "
       "than 0 and at most 1000000"},
      {good + "learning_rate: {schedule: points, points: [[0, 1], [3]]}\n",
       {},
       "exp.yaml:8:52: learning_rate.points item 2 is a list, " + pairs},
      {good + "learning_rate: {schedule: points, points: [[0, 1], [-1, 2]]}\n",
       {},
       "exp.yaml:8:52: learning_rate.points item 2 is a list, " + pairs},
      {good + "learning_rate: {schedule: points, points: [0, 1]}\n",
       {},
       "exp.yaml:8:44: learning_rate.points item 1 is '0', " + pairs},
      {good,
       {"learning_rate.points=[[0,1],[2,[3]]]"},
       "override 'learning_rate.points=[[0,1],[2,[3]]]': learning_rate.points item 2 is a list, " + pairs},
      {good + "learning_rate: {schedule: step, milestones: [[3]]}\n",
       {},
       "exp.yaml:8:46: learning_rate.milestones item 1 is a list, expected a list of numbers such as [30, 60, 80], "
       "each greater than 0 and at most 1000000"},
      // Overrides.
      {good, {"batch.global=abc"}, "override 'batch.global=abc': batch.global is 'abc', expected " + i32},
      {good, {"batch.global=null"}, "override 'batch.global=null': batch.global is 'null', expected " + i32},
      {good + "seed: null\n",
       {},
       "exp.yaml:8:1: seed has no value, expected an integer from 0 to 18446744073709551615"},
      {good,
       {"stop.epochs=null"},
       "exp.yaml:1:1: nothing ends the run, expected stop.epochs, stop.steps, stop.seconds or stop.target_metric"},
      {good, {"batch.global="}, "override 'batch.global=': batch.global has no value, expected " + i32},
      {good,
       {"batch.gloabl=64"},
       "override 'batch.gloabl=64': unknown key 'batch.gloabl'; did you mean 'batch.global'?"},
      {good, {"lr=0.1"}, "override 'lr=0.1': unknown key 'lr'; did you mean 'learning_rate.base'?"},
      {good,
       {"learning_rate=0.1"},
       "override 'learning_rate=0.1': learning_rate is a section, expected one of its keys; did you mean "
       "'learning_rate.base'?"},
      {good,
       {"--resume"},
       "override '--resume': no key before an '=', expected key.path=value such as batch.global=4096"},
      {good, {"=3"}, "override '=3': no key before an '=', expected key.path=value such as batch.global=4096"},
      {good,
       {"learning_rate.milestones=[30,,60]"},
       "override 'learning_rate.milestones=[30,,60]': learning_rate.milestones item 2 is '', expected a list of "
       "numbers such as [30, 60, 80], each greater than 0 and at most 1000000"},
      {good,
       {"seed=5", "seed=six"},
       "override 'seed=six': seed is 'six', expected an integer from 0 to "
       "18446744073709551615"},
  };
  for (const BadExperiment& bad : cases) EXPECT_EQ(reading_error(bad.yaml, bad.overrides), bad.what) << bad.yaml;
}

TEST(ConfigReader, PathsMayNameTheHomeFolderAndVariables) {
  const WithEnvironment set({{"HOME", "/home/ann"}, {"SCRATCH", "/scratch/ann"}, {"EMPTY", ""}});
  const auto train = [](const std::string& path) {
    return parse_experiment(good, "exp.yaml", {"data.train=" + path}).data.train;
  };
  EXPECT_EQ(train("~/pets"), "/home/ann/pets");
  EXPECT_EQ(train("a/~/b~"), "a/~/b~");
  EXPECT_EQ(train("$SCRATCH/pets"), "/scratch/ann/pets");
  EXPECT_EQ(train("x/${SCRATCH}_2/$HOME"), "x//scratch/ann_2//home/ann");
  EXPECT_EQ(train("costs$/5$-${HOME"), "costs$/5$-${HOME");
  EXPECT_EQ(parse_experiment(replaced(good, "some/train", "$SCRATCH/pets"), "exp.yaml", {"run.dir=~/runs/1"}).run.dir,
            "/home/ann/runs/1");
  EXPECT_EQ(parse_experiment(good, "exp.yaml", {"seed=1", "name=pets"}).name, "pets");
  for (const char* path : {"$NOWHERE_TO_BE_SEEN/pets", "${EMPTY}/pets"})
    EXPECT_NE(message_of([&] { train(path); }).find("but the environment variable "), std::string::npos) << path;
  EXPECT_NE(message_of([&] { train("~bob/pets"); }).find("data.train is ~bob/pets, expected ~/"), std::string::npos);
}

TEST(ConfigReader, YamlThatDoesNotParseIsReportedWithItsPlace) {
  // The text after the prefix comes from the YAML library and differs between its versions.
  const std::vector<std::pair<std::string, std::string>> cases = {
      {good + "seed: [1\n", "exp.yaml:9:1: not valid YAML: "},
      {good + "}\n", "exp.yaml:8:1: not valid YAML: "},
      {good + "seed: 1: 2\n", "exp.yaml:8:8: not valid YAML: "},
      {good + "seed: *other\n", "exp.yaml:8:7: not valid YAML: "},
      {good + "seed: {a: 1\n", "exp.yaml:9:1: not valid YAML: "},
      {good + "   seed: 1\n", "exp.yaml:8:4: not valid YAML: "},
  };
  for (const auto& [yaml, prefix] : cases) {
    const std::string what = reading_error(yaml);
    EXPECT_EQ(what.substr(0, prefix.size()), prefix) << yaml << what;
    EXPECT_GT(what.size(), prefix.size());
  }
}

TEST(ConfigReader, AFileThatCannotBeReadIsNamed) {
  const auto what = [](const std::string& path) -> std::string {
    try {
      read_experiment(path, {});
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(what("no/such.yaml"), "no/such.yaml:1:1: cannot be opened, expected an experiment file");
  EXPECT_EQ(what("/"), "/:1:1: cannot be read, expected an experiment file");
  const auto large = std::filesystem::temp_directory_path() / "ringtrain_config_reader_test_large.yaml";
  std::ofstream(large) << std::string((1 << 20) + 1, '#');
  EXPECT_EQ(what(large.string()), large.string() + ":1:1: more than 1 MiB, expected an experiment file");
  std::filesystem::remove(large);
}

TEST(ConfigReader, KeysThatAreNotGivenHaveTheDefaultOfTheStructs) {
  Experiment by_hand;
  by_hand.name = "study";
  by_hand.data.train = "some/train";
  by_hand.batch.global = 64;
  by_hand.batch.worker = 16;
  by_hand.stop.epochs = 10;
  EXPECT_TRUE(parse_experiment(good, "exp.yaml", {}) == by_hand);
}

TEST(ConfigReader, LaterOverridesWinAndTakeListsEmptyTextAndTextWithSpaces) {
  const Experiment e =
      parse_experiment(good, "exp.yaml",
                       {"seed=7", "seed=8", "learning_rate.schedule=step", "learning_rate.milestones=[3, 6,8.5]",
                        "data.validation=my data=1: #x", "run.dir=somewhere", "run.dir="});
  EXPECT_EQ(e.seed, 8u);
  EXPECT_EQ(e.learning_rate.milestones, (std::vector<double>{3, 6, 8.5}));
  EXPECT_EQ(e.data.validation, "my data=1: #x");
  EXPECT_EQ(e.run.dir, "");
}

TEST(ConfigReader, TheOverrideNullMakesAnyKeyTheDefaultThatIsNotRequired) {
  const Experiment plain = parse_experiment(good, "exp.yaml", {});
  for (const Field& field : schema()) {
    if (field.required_ || field.key == "stop.epochs") continue;  // an experiment needs one end
    EXPECT_TRUE(parse_experiment(good, "exp.yaml", {cat(field.key, "=null")}) == plain) << field.key;
  }
  const std::string given = good +
                            "seed: 7\nlearning_rate: {schedule: step, milestones: [3]}\noptimizer: {no_decay: [bias]}\n"
                            "run: {dir: somewhere}\n";
  EXPECT_TRUE(parse_experiment(given, "exp.yaml",
                               {"seed=8", "seed=null", "learning_rate.schedule=null", "learning_rate.milestones=null",
                                "optimizer.no_decay=null", "run.dir=null"}) == plain);
  EXPECT_EQ(parse_experiment(given, "exp.yaml", {"seed=null", "seed=9"}).seed, 9u);
  EXPECT_EQ(parse_experiment(good, "exp.yaml", {"name=null"}).name, "null");  // a required text has no default
}

TEST(ConfigReader, AnOverrideCanGiveARequiredKey) {
  EXPECT_EQ(parse_experiment(replaced(good, "name: study\n", ""), "exp.yaml", {"name=other"}).name, "other");
}

TEST(ConfigReader, WindowsLineEndsAndAByteOrderMarkReadTheSame) {
  std::string windows = "\xEF\xBB\xBF";
  for (const char c : good) windows += c == '\n' ? "\r\n" : std::string(1, c);
  EXPECT_TRUE(parse_experiment(windows, "exp.yaml", {}) == parse_experiment(good, "exp.yaml", {}));
}

TEST(ConfigSchema, DefaultsLieInTheirOwnRange) {
  // Gives the default of every key that is not required as an override.
  for (const Field& field : schema())
    if (!field.required_) {
      const std::string value = value_text(field, Experiment());
      const std::string given = cat(field.key, "=", value == "\"\"" ? "" : value);
      const std::string what = reading_error(good, {given});
      EXPECT_TRUE(what == "no error" || field.key == "stop.epochs") << what;
    }
}

}  // namespace
}  // namespace ringtrain
