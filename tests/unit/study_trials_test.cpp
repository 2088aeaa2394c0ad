// Tests the trials of a study: choices, rules, names, equal trials, and shares of a job array.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "config/reader.h"
#include "config/schema.h"
#include "study/trials.h"
#include "tests/unit/good_experiment.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

class StudyTrials : public WithFolder {
 protected:
  void SetUp() override {
    WithFolder::SetUp();
    std::ofstream(path("exp.yaml")) << good;  // batch.global 64, batch.worker 16, 10 epochs
  }
  Trials trials(const std::string& rest, const std::vector<std::string>& overrides = {}) const {
    return make_trials(parse_study("name: s\nexperiment: exp.yaml\n" + rest, path("s.yaml"), overrides));
  }
  std::vector<std::string> names(const std::string& rest) const {
    std::vector<std::string> list;
    for (const Trial& trial : trials(rest).list) list.push_back(trial.name);
    return list;
  }
  std::string refusal(const std::string& rest) const {
    std::string message = message_of([&] { trials(rest); });
    for (auto at = message.find(path("")); at != std::string::npos; at = message.find(path("")))
      message.erase(at, path("").size());
    return message;
  }
};

using Names = std::vector<std::string>;

TEST_F(StudyTrials, ListsMultiplyAndSeedsAreLast) {
  EXPECT_EQ(names(""), Names{"unchanged"});
  EXPECT_EQ(names("vary:\n  batch.global: [64, 128]\n  learning_rate.base: [0.001, 0.01]\nrepeat: 2\n"),
            (Names{"unchanged", "seed-2", "base-0.01", "base-0.01_seed-2", "global-128", "global-128_seed-2",
                   "global-128_base-0.01", "global-128_base-0.01_seed-2"}));
  const Trials two = trials("vary: {batch.global: [64, 128]}\nranks_per_trial: [1, 2]\n");
  ASSERT_EQ(two.list.size(), 4u);
  EXPECT_EQ(two.list[3].name, "ranks-2_global-128");
  EXPECT_EQ(two.list[3].ranks, 2);
  EXPECT_EQ(two.list[3].experiment.batch.global, 128);
  EXPECT_EQ(two.list[3].overrides, Names{"batch.global=128"});
}

TEST_F(StudyTrials, KeysOfASectionWithinASectionAreVaried) {
  const Trials all = trials(
      "vary: {data.share: [0.25, 1], optimizer.half_life.beta2: [0, 5000]}\n"
      "rules: {average.half_life: 2 * optimizer.half_life.beta2}\n");
  Names list;
  for (const Trial& trial : all.list) {
    list.push_back(trial.name);
    EXPECT_EQ(trial.experiment.average.half_life, 2 * trial.experiment.optimizer.half_life.beta2);
    EXPECT_EQ(read_experiment(path("exp.yaml"), trial.overrides), trial.experiment) << trial.name;
  }
  EXPECT_EQ(list, (Names{"share-0.25", "share-0.25_optimizer.half_life.beta2-5000", "unchanged",
                         "optimizer.half_life.beta2-5000"}));
  // New keys have not made the names longer.
  EXPECT_EQ(names("vary: {optimizer.beta2: [0.99]}\n"), Names{"beta2-0.99"});
  EXPECT_EQ(trials("vary: {model.channels: [[8, 16]], data.channels: [1]}\n", {"model.kind=cnn"}).list.at(0).name,
            "channels-8-16_data.channels-1");
  expect_contains(refusal("vary: {optimizer.half_life: [1]}\n"),
                  "s.yaml:3:8: optimizer.half_life is a section, expected its keys with a dot "
                  "[optimizer.half_life.momentum: [...]]");
}

TEST_F(StudyTrials, NullTakesAKeyOfTheExperimentBack) {
  std::ofstream(path("exp.yaml")) << good << "optimizer: {kind: sgd, momentum: 0.8}\n";
  const std::string half_lives = "vary: {optimizer.half_life.momentum: [500, 1000]}\n";
  expect_contains(refusal(half_lives),
                  "(trial optimizer.half_life.momentum-500) [Leave out optimizer.momentum (as an override: "
                  "optimizer.momentum=null), or set optimizer.half_life.momentum=0.]");
  EXPECT_EQ(trials(half_lives, {"optimizer.momentum=null"}).list[1].experiment.optimizer.half_life.momentum, 1000);

  const Trials all = trials(
      "vary:\n"
      "  forgets:\n"
      "    factor: {optimizer.momentum: 0.5}\n"
      "    half_life: {optimizer.momentum: null, optimizer.half_life.momentum: 1000}\n"
      "    file: {}\n"
      "  data.validation: [~, some/validation]\n");
  ASSERT_EQ(all.list.size(), 6u);
  for (const Trial& trial : all.list)
    EXPECT_EQ(read_experiment(path("exp.yaml"), trial.overrides), trial.experiment) << trial.name;
  EXPECT_EQ(all.list[2].name, "forgets-half_life");
  EXPECT_EQ(all.list[2].overrides,
            (Names{"optimizer.momentum=null", "optimizer.half_life.momentum=1000", "data.validation=null"}));
  EXPECT_EQ(all.list[4].experiment.optimizer.momentum, 0.8);
  for (const char* missing : {"{optimizer.momentum: }", "{a: {x: {optimizer.momentum: }}}", "{batch.global: null}"})
    expect_contains(refusal(cat("vary: ", missing, "\n")), "has no value, expected a");
}

TEST_F(StudyTrials, OverridesMakeTheTrialFromTheExperiment) {
  const Trials all = trials(
      "vary:\n"
      "  batch.global: [64, 192]\n"
      "  decay: {none: {}, some: {optimizer.kind: sgd, optimizer.weight_decay: 1.0e-4, optimizer.no_decay: [norm]}}\n"
      "  learning_rate.base: {log_uniform: [0.0001, 0.1]}\n"
      "draws: {count: 3}\n"
      "repeat: [4, 9]\n"
      "rules: {stop.epochs: batch.global / 8}\n"
      "limits: {seconds: 5}\n");
  ASSERT_EQ(all.list.size(), 24u);
  for (const Trial& trial : all.list)
    EXPECT_EQ(read_experiment(path("exp.yaml"), trial.overrides), trial.experiment) << trial.name;
}

TEST_F(StudyTrials, RulesFollowEachOtherInAnyOrder) {
  const Trials all = trials(
      "vary: {batch.global: [64, 256, 128]}\n"
      "rules:\n"
      "  learning_rate.end: learning_rate.base / 100\n"
      "  learning_rate.base: 0.001 * sqrt(batch.global / 64)\n"
      "  batch.worker: batch.global / 4\n",
      {"learning_rate.schedule=cosine"});
  ASSERT_EQ(all.list.size(), 3u);
  EXPECT_DOUBLE_EQ(all.list[1].experiment.learning_rate.base, 0.002);
  EXPECT_DOUBLE_EQ(all.list[1].experiment.learning_rate.end, 0.00002);
  EXPECT_EQ(all.list[1].experiment.batch.worker, 64);
  EXPECT_EQ(all.list[2].experiment.learning_rate.base, 0.001 * std::sqrt(2.0));  // every digit counts
  EXPECT_EQ(all.list[1].name, "global-256");  // the name leaves out keys that follow from rules
}

TEST_F(StudyTrials, RulesThatCannotBeFollowedAreNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"rules: {learning_rate.base: learning_rate.end, learning_rate.end: learning_rate.base}\n",
       "s.yaml:3:29: the rule of learning_rate.base needs its own result (trial unchanged)"},
      {"rules: {learning_rate.base: learning_rate.base * 2}\n", "the rule of learning_rate.base needs its own result"},
      {"rules: {batch.global: batch_per_rank * ranks}\n", "s.yaml:3:23: the rule of batch.global needs its own result"},
      {"rules: {batch.worker: batch.global / 3}\n",
       "s.yaml:3:23: batch.worker: batch.global / 3 is 21.3333, expected an integer (trial unchanged) [round(...)"},
      {"rules: {batch.worker: batch.global * 10 ^ 15}\n",
       "s.yaml:3:23: batch.worker: batch.global * 10 ^ 15 is 6.4e+16, which is too large, expected an integer from"},
      {"rules: {learning_rate.base: 0 - ranks}\n", "s.yaml:3:29: learning_rate.base is '-1', expected a number"},
      {"vary: {seed: [1, 2]}\nrules: {learning_rate.base: 1 / (seed - 2)^2}\n",
       "s.yaml:4:31: 1 / 0 is not a finite number (trial seed-2)"},
      {"vary: {batch.worker: [16, 5]}\n",
       "s.yaml:3:27: batch.worker is 5 but batch.global is 64, expected a worker that divides global (trial worker-5)"},
      {"vary: {batch.global: [64, many]}\n", "s.yaml:3:27: batch.global is 'many', expected an integer from 1"},
      {"ranks_per_trial: [1, 0]\n", "s.yaml:3:22: ranks_per_trial is '0', expected an integer from 1 to 1000000"},
      {"rules: {ranks_per_trial: 3 / 2}\n", "s.yaml:3:26: ranks_per_trial: 3 / 2 is 1.5, expected an integer"},
      {"rules:\n  - ranks > 1\n", "s.yaml:4:5: no trial is left: none of 1 fulfils ranks > 1"},
      {"vary: {seed: {grid: [1, 10000], points: 10000}}\nranks_per_trial: [1, 2]\n", "s.yaml: more than 10000 trials"},
  };
  for (const auto& [rest, expected] : cases) expect_contains(refusal(rest), expected);
}

// The study of the pet names has 1, 4 and 16 ranks with the same number of samples on each rank.
TEST_F(StudyTrials, RanksDoNotChangeTheBatchUnlessARuleSaysSo) {
  const std::string grid = "ranks_per_trial: [1, 4, 16]\nvary: {batch_per_rank: [1024, 64]}\n";
  const std::string message = refusal(grid);
  expect_contains(message,
                  "s.yaml:3:19: ranks_per_trial would change batch.global (1 rank x 64 = 64, 4 ranks x 64 = 256, "
                  "16 ranks x 64 = 1024 samples a step), and no rule says so");
  expect_contains(message, "rules: {batch_per_rank: 1024 / ranks}");
  expect_contains(refusal("ranks_per_trial: [1, 4]\nrules: {batch_per_rank: 64}\n"), "would change batch.global");
  expect_contains(
      refusal("vary:\n  cell:\n    a: {ranks_per_trial: 1, batch_per_rank: 64}\n    b: {ranks_per_trial: 4, "
              "batch_per_rank: 64}\n"),
      "s.yaml:5:26: ranks_per_trial would change batch.global (1 rank x 64 = 64, 4 ranks x 64 = 256");

  EXPECT_EQ(trials(grid + "rules: {batch.global: batch_per_rank * ranks}\n").list.size(), 6u);
  const Trials equal = trials("ranks_per_trial: [1, 4, 16]\nrules: {batch_per_rank: 1024 / ranks}\n");
  ASSERT_EQ(equal.list.size(), 3u);
  for (const Trial& trial : equal.list) EXPECT_EQ(trial.experiment.batch.global, 1024);
  // If the study does not set the batch, the experiment's batch counts.
  for (const Trial& trial : trials("ranks_per_trial: [1, 2, 4]\n").list) EXPECT_EQ(trial.experiment.batch.global, 64);
}

TEST_F(StudyTrials, AConditionSelectsCellsOfEqualBatch) {
  const Trials all = trials(
      "ranks_per_trial: [1, 4, 16]\n"
      "vary: {batch_per_rank: [16384, 4096, 1024]}\n"
      "rules:\n  - batch_per_rank * ranks = 16384\n");
  EXPECT_EQ(all.choices, 9u);
  EXPECT_EQ(all.left_out, 6u);
  ASSERT_EQ(all.list.size(), 3u);
  EXPECT_EQ(all.list[1].name, "ranks-4_batch_per_rank-4096");
  for (const Trial& trial : all.list) EXPECT_EQ(trial.experiment.batch.global, 16384);
}

TEST_F(StudyTrials, RanksMayFollowFromTheBatch) {
  const Trials all = trials(
      "vary:\n  batch.global: [64, 256]\n  batch_per_rank: [32, 64]\n"
      "rules: {ranks_per_trial: batch.global / batch_per_rank}\n");
  ASSERT_EQ(all.list.size(), 4u);
  EXPECT_EQ(all.list[0].ranks, 2);
  EXPECT_EQ(all.list[2].ranks, 8);
  expect_contains(refusal("vary:\n  batch.global: [64]\n  batch_per_rank: [32]\n"),
                  "batch_per_rank 32 x 1 rank = 32, but batch.global is 64");
}

TEST_F(StudyTrials, IdenticalTrialsAreRunOnce) {
  const Trials all = trials(
      "vary:\n"
      "  learning_rate.base: [0.001, 1.0e-3, 0.002]\n"
      "  case:\n    a: {batch.micro: 8}\n    b: {batch.micro: 8}\n    c: {batch.micro: 16}\n");
  EXPECT_EQ(all.choices, 9u);
  ASSERT_EQ(all.list.size(), 4u);
  EXPECT_EQ(all.list[0].name, "case-a");
  EXPECT_EQ(all.list[0].also, Names{"case-b"});
  // Another number of ranks is another trial.
  EXPECT_EQ(trials("ranks_per_trial: [1, 2, 2]\n").list.size(), 2u);
}

TEST_F(StudyTrials, NamesStayWhenTheStudyGrows) {
  const std::string small = "vary:\n  batch.global: [64, 128]\n  recipe: {as: {}, sgd: {optimizer.kind: sgd}}\n";
  const std::string large =
      "ranks_per_trial: [4, 1, 2]\n"
      "vary:\n"
      "  precision: [bf16, fp32]\n"
      "  recipe: {lamb: {optimizer.kind: lamb}, sgd: {optimizer.kind: sgd}, as: {}}\n"
      "  batch.global: [32, 64, 128, 256]\n"
      "  learning_rate.base: [0.01, 0.001]\n"
      "repeat: 3\n"
      "limits: {seconds: 9}\n";
  const Names grown = names(large);
  const Trials before = trials(small), after = trials(large);
  EXPECT_EQ(std::set<std::string>(grown.begin(), grown.end()).size(), 3u * 2 * 3 * 4 * 2 * 3);
  for (const Trial& trial : before.list) {
    const auto same = std::ranges::find(after.list, trial.name, &Trial::name);
    ASSERT_NE(same, after.list.end()) << trial.name;
    Experiment unlimited = same->experiment;
    unlimited.stop.seconds = 0;
    EXPECT_EQ(unlimited, trial.experiment) << trial.name;
    EXPECT_EQ(same->ranks, trial.ranks);
  }
}

TEST_F(StudyTrials, NamesAreFolders) {
  const Trials all = trials(
      "vary:\n"
      "  data.train: [a/b, a-b]\n"
      "  learning_rate.milestones: [[3, 6], [0.5, 5, 7.25]]\n"
      "  data.validation: [\"\", some text]\n",
      {"learning_rate.schedule=step"});
  std::set<std::string> different;
  for (const Trial& trial : all.list) {
    EXPECT_TRUE(is_folder_name(trial.name)) << trial.name;
    different.insert(trial.name);
  }
  EXPECT_EQ(different.size(), 8u);
  EXPECT_EQ(all.list[4].name, "train-a-b_milestones-3-6");
  EXPECT_TRUE(all.list[0].name.starts_with("train-a-b-")) << all.list[0].name;  // followed by a hash of a/b

  std::string vary = "vary:\n";
  for (const char* key : {"data.train", "data.validation", "machine.plan_cache"})
    vary += std::string("  ") + key + ": [" + std::string(60, 'a') + ", " + std::string(60, 'b') + "]\n";
  different.clear();
  for (const std::string& name : names(vary)) {
    EXPECT_EQ(name.size(), 100u);
    different.insert(name);
  }
  EXPECT_EQ(different.size(), 8u);
}

TEST_F(StudyTrials, LimitsStandInPlaceOfTheExperimentsCounts) {
  const auto stop = [&](const std::string& rest) { return trials(rest).list.front().experiment.stop; };
  EXPECT_EQ(stop("").epochs, 10);
  EXPECT_EQ(stop("limits: {epochs: 3}\n").epochs, 3);
  const StopConfig by_samples = stop("limits: {samples: 65}\n");
  EXPECT_EQ(by_samples.epochs, 0);
  EXPECT_EQ(by_samples.steps, 2);  // 65 samples need more than one step of 64
  EXPECT_EQ(stop("limits: {samples: 64}\n").steps, 1);
  EXPECT_EQ(stop("limits: {samples: 640, epochs: 3}\n").epochs, 3);
  EXPECT_EQ(stop("limits: {samples: 640, epochs: 3}\n").steps, 10);
  const StopConfig target =
      trials("limits: {target: {validation_accuracy: 0.7}, seconds: 60}\n", {"data.validation=some/validation"})
          .list.front()
          .experiment.stop;
  EXPECT_EQ(target.epochs, 10);
  EXPECT_EQ(target.seconds, 60);
  EXPECT_EQ(target.target_metric, "validation_accuracy");
  EXPECT_EQ(target.target_value, 0.7);
  expect_contains(refusal("limits: {target: {loss: 0.7}}\n"),
                  "s.yaml:3:19: stop.target_metric is 'loss', expected one of");
  const Trials batches = trials("vary: {batch.global: [64, 128]}\nlimits: {samples: 1000}\n");
  EXPECT_EQ(batches.list[0].experiment.stop.steps, 16);
  EXPECT_EQ(batches.list[1].experiment.stop.steps, 8);
}

TEST_F(StudyTrials, SharesAreDisjointCompleteAndEven) {
  const Trials all = trials("vary:\n  batch.global: [64, 128, 256]\n  seed: {grid: [1, 9], points: 9}\n");
  ASSERT_EQ(all.list.size(), 27u);
  for (const std::int64_t n : {1, 2, 4, 7, 27, 40})
    for (const std::int64_t first : {0, 1}) {  // arrays may begin at 0 or at 1
      std::multiset<std::size_t> together;
      std::size_t least = 100, most = 0;
      for (std::int64_t k = first; k < first + n; ++k) {
        const std::vector<std::size_t> share = share_of(all, k, n);
        EXPECT_TRUE(std::ranges::is_sorted(share));
        least = std::min(least, share.size());
        most = std::max(most, share.size());
        together.insert(share.begin(), share.end());
      }
      EXPECT_EQ(together.size(), all.list.size());
      EXPECT_EQ(std::set<std::size_t>(together.begin(), together.end()).size(), all.list.size());
      EXPECT_LE(most - least, 1u);
    }
  EXPECT_EQ(share_of(all, 0, 4), share_of(all, 4, 4));
  for (const auto& [k, n] : std::vector<std::pair<int, int>>{{5, 4}, {-1, 4}, {0, 0}})
    expect_contains(message_of([&] { share_of(all, k, n); }), "expected a share from 1/N to N/N");
}

}  // namespace
}  // namespace ringtrain
