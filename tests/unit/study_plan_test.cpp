// Tests the plans of trials and their expected times.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "bench/preflight.h"
#include "config/reader.h"
#include "config/schema_text.h"
#include "study/search.h"
#include "study/trial_plan.h"
#include "tests/unit/repository.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

std::filesystem::path studies() {
  return repository() / "configs" / "studies";
}

// Returns the headers of a data set of names with `total` samples.
DatasetIndex names_index(const std::string& prefix, std::int64_t total) {
  DatasetIndex index;
  index.prefix = prefix;
  index.kind = "text";
  index.total = total;
  index.text.context_length = 8;
  index.text.vocabulary.resize(31);
  for (std::size_t i = 0; i < 31; ++i) index.text.vocabulary[i] = std::string(1, static_cast<char>('A' + i));
  index.shards.resize(1);
  index.shards[0].count = total;
  return index;
}

TrialPlanner planner(bool has_gpus = false) {
  TrialPlanner p(1, "", has_gpus);
  p.give(names_index("data_prep/data/pet_names-train", 350'000));
  p.give(names_index("data_prep/data/pet_names-validation", 40'000));
  p.give(names_index("data_prep/data/names-train", 70'000));
  p.give(names_index("data_prep/data/names-validation", 8'000));
  return p;
}

// A study of hundreds of trials is planned at every fifth: each value of a key is still met.
TEST(StudyPlan, TrialsOfEveryStudyInTheRepositoryArePlanned) {
  std::map<std::string, std::size_t> counts;
  TrialPlanner p = planner();
  for (const auto& entry : std::filesystem::directory_iterator(studies())) {
    if (entry.path().extension() != ".yaml") continue;
    const Study study = read_study(entry.path().string(), {});
    EXPECT_EQ(study.name, entry.path().stem().string());
    const Trials trials = make_trials(study);
    const std::size_t stride = trials.list.size() > 200 ? 5 : 1;
    for (std::size_t i = 0; i < trials.list.size(); i += stride) {
      const Trial& trial = trials.list[i];
      const TrialPlan plan = p.plan(trial);
      EXPECT_EQ(plan.batch.ranks, trial.ranks);
      EXPECT_EQ(plan.batch.ranks * plan.batch.accumulation * plan.batch.micro_batch, trial.experiment.batch.global);
      EXPECT_EQ(plan.steps > 0, !trial.experiment.optimizer.adascale) << trial.name;  // AdaScale decides on its steps
    }
    counts[study.name] = trials.list.size();
  }
  EXPECT_EQ(counts["pet_names_grid"], 27u);
  EXPECT_EQ(counts["goyal_sweep"], 40u);
  EXPECT_EQ(counts["imagenet_branches"], 35u);
  EXPECT_EQ(counts["imagenet_lars_halving"], 27u);
}

TEST(StudyPlan, BranchesTakeTheSameSamplesInFewerStepsAtTheLinearRate) {
  TrialPlanner p = planner();
  std::map<std::string, TrialPlan> plans;
  for (const Trial& trial : make_trials(read_study((studies() / "imagenet_branches.yaml").string(), {})).list)
    plans[trial.name] = p.plan(trial);
  for (const auto& [k, name] : {std::pair(1, "ranks-8_at-1_x1"), {4, "ranks-8_at-1_x4"}, {64, "ranks-8_at-1_x64"}}) {
    ASSERT_TRUE(plans.contains(name));
    EXPECT_EQ(plans[name].steps, 2560 / k);
    EXPECT_EQ(plans[name].samples, 655360);
    EXPECT_EQ(plans[name].batch.global, 256 * k);
    EXPECT_NEAR(plans[name].peak_rate, 0.1 * k, 1e-12);
  }
  EXPECT_NEAR(plans["ranks-8_at-50_x4"].peak_rate, 0.04, 1e-12);  // after the first milestone, epoch 30
}

TEST(StudyPlan, RungsOfTheSearchAreShown) {
  const Study study = read_study((studies() / "imagenet_lars_halving.yaml").string(), {});
  const Trials trials = make_trials(study);
  EXPECT_EQ(searches_of(study, trials).at(0).rungs,
            (std::vector<Rung>{{27, 1896297}, {9, 5688889}, {3, 17066667}, {1, 51200000}}));
  const std::string text = describe_rungs(study, trials);
  for (const char* part : {"27 points to 1,896,297 samples; the best 9 go on",
                           "3 points to 17,066,667 samples, 11,377,778 more; "
                           "the best 1 goes on",
                           "11.1 %"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST(StudyPlan, TheGridOfThePetNamesIsTheTalks) {
  TrialPlanner p = planner();
  const Trials trials = make_trials(read_study((studies() / "pet_names_grid.yaml").string(), {}));
  std::set<std::int64_t> batches;
  for (const Trial& trial : trials.list) batches.insert(trial.experiment.batch.global);
  EXPECT_EQ(batches, (std::set<std::int64_t>{1024, 4096, 16384, 65536, 262144}));
  const auto largest = std::ranges::find(trials.list, "ranks-16_batch_per_rank-16384_base-0.016", &Trial::name);
  ASSERT_NE(largest, trials.list.end());
  const TrialPlan plan = p.plan(*largest);
  EXPECT_EQ(plan.steps, 15);  // an epoch of 350,000 holds one step of 262,144
  EXPECT_EQ(plan.samples, 15 * 262144);
  EXPECT_EQ(plan.peak_rate, 0.016);
}

TEST(StudyPlan, AnEpochWithASmallerLastBatchHasAllItsSamples) {
  TrialPlanner p = planner();
  const auto path = (studies() / "pet_names_grid.yaml").string();
  const Trials trials = make_trials(read_study(path, {"data.last_batch=smaller"}));
  EXPECT_EQ(p.plan(trials.list.back()).samples, 15 * 350'000);
}

// AdaScale's schedule counts steps of base_batch. The number of its updates is known only at the end.
TEST(StudyPlan, AdaScaleIsPlannedByItsBaseBatch) {
  TrialPlanner p = planner();
  Trial trial;
  trial.experiment =
      read_experiment((studies() / "../pet_names.yaml").string(),
                      {"optimizer.kind=sgd", "optimizer.adascale=true", "learning_rate.base_batch=1024",
                       "noise.small_batch=1024", "learning_rate.schedule=cosine", "learning_rate.base=0.1"});
  const TrialPlan plan = p.plan(trial);
  EXPECT_EQ(plan.steps, 0);
  EXPECT_EQ(plan.peak_rate, 0.1);
}

// Such a trial runs on a GPU. Only its GPU can tell what fits.
TEST(StudyPlan, WhereThereAreGpusOnlyTheTrialsCheckTheirMemory) {
  Trial trial;
  trial.experiment = read_experiment((studies() / "../names.yaml").string(),
                                     {"memory.offload=true", "memory.limit_gib=0.001", "precision=fp16"});
  TrialPlanner on_cpus = planner(), on_gpus = planner(true);
  EXPECT_THROW(on_cpus.plan(trial), Error);
  EXPECT_GT(on_gpus.plan(trial).steps, 0);
  trial.experiment.machine.device = "cpu";
  EXPECT_THROW(on_gpus.plan(trial), Error);
}

TEST(StudyPlan, GoyalsRatesAreTheirs) {
  TrialPlanner p = planner();
  std::map<std::string, double> rates;
  for (const Trial& trial : make_trials(read_study((studies() / "goyal_sweep.yaml").string(), {})).list)
    rates[trial.name] = p.plan(trial).peak_rate;
  EXPECT_NEAR(rates["ranks-4_point-b256"], 0.1, 1e-12);  // named by the experiment's own seed
  EXPECT_NEAR(rates["ranks-4_point-b32768_seed-5"], 12.8, 1e-12);
  EXPECT_NEAR(rates["ranks-4_point-sqrt"], 0.1 * std::sqrt(32.0), 1e-12);
}

class StudyTime : public WithFolder {
 protected:
  static Trial trial() {
    Trial t;
    t.name = "ranks-2";
    t.ranks = 2;
    t.experiment = read_experiment((studies() / "../pet_names.yaml").string(), {});
    return t;
  }
  static TrialPlan plan() {
    TrialPlan p;
    p.batch.global = 4096;
    p.steps = 100;
    p.samples = 409600;
    return p;
  }
  // Writes the files of a run of 10 steps.
  void add_run(const std::string& name, std::int64_t ranks, std::int64_t batch, double seconds,
               const std::string& started = "2026-11-21T10:00:00Z", std::int64_t worker = 0) const {
    std::filesystem::create_directories(path(name));
    Experiment experiment = trial().experiment;
    if (worker > 0) experiment.batch.worker = worker;
    std::ofstream(path(name) + "/experiment.yaml") << to_yaml(experiment);
    std::ofstream(path(name) + "/run.json")
        << "{\"starts\": [{}, {\"started\": \"" << started
        << "\", \"backend\": \"CPU, 2 threads\", \"ranks\": " << ranks << ", \"batch\": {\"global\": " << batch
        << "}, \"final_step\": 10, \"elapsed_seconds\": " << seconds << "}]}";
    add_step(name, 10, 10 * batch);
  }
  void add_step(const std::string& name, std::int64_t step, std::int64_t samples) const {
    std::ofstream(path(name) + "/metrics.jsonl", std::ios::app)
        << "{\"step\": " << step << ", \"samples\": " << samples << ", \"loss\": 2}\n";
  }
  std::optional<ExpectedTime> time(const Trial& of, const std::vector<Preflight>& preflight = {}) const {
    return TimeExpectation(measured_runs(path("")), preflight).of(of, plan());
  }
};

TEST_F(StudyTime, ComesFromTheRunWithTheNearestBatch) {
  EXPECT_FALSE(time(trial()));
  add_run("far", 2, 65536, 655.36);  // 1 ms a sample
  EXPECT_NEAR(time(trial())->seconds, 409.6, 1e-9);
  add_run("near", 2, 2048, 2.048);  // 0.1 ms a sample
  add_run("other", 4, 4096, 999);   // another number of ranks
  EXPECT_NEAR(time(trial())->seconds, 40.96, 1e-9);
  EXPECT_EQ(time(trial())->from, "near");

  Trial wider = trial();
  wider.experiment.model.hidden = 256;
  EXPECT_FALSE(time(wider));
  TrialPlan endless = plan();
  endless.steps = 0;
  EXPECT_FALSE(TimeExpectation(measured_runs(path("")), {}).of(trial(), endless));
}

TEST_F(StudyTime, ComesFromTheNewestOfEqualRuns) {
  add_run("a", 2, 4096, 4.096, "2026-11-21T10:00:00Z");
  add_run("b", 2, 4096, 40.96, "2026-11-21T11:00:00Z");
  add_run("c", 2, 4096, 4.096, "2026-11-21T09:00:00Z");
  EXPECT_EQ(time(trial())->from, "b");
  EXPECT_NEAR(time(trial())->seconds, 409.6, 1e-9);
}

TEST_F(StudyTime, PrefersTheSameWorkerToTheSameBatch) {
  add_run("same-worker", 2, 2048, 2.048);
  add_run("same-batch", 2, 4096, 4.096, "2026-11-21T10:00:00Z", trial().experiment.batch.worker / 2);
  EXPECT_EQ(time(trial())->from, "same-worker");
}

TEST_F(StudyTime, ComesOnlyFromARunWhoseSettingsAreThoseOfTheTrial) {
  add_run("run", 2, 4096, 4.096);
  EXPECT_TRUE(time(trial()));
  const auto time_with = [&](const std::vector<std::string>& overrides) {
    Trial other = trial();
    other.experiment = read_experiment((studies() / "../pet_names.yaml").string(), overrides);
    return time(other);
  };
  const std::vector<std::vector<std::string>> slower = {{"run.threads=7"},
                                                        {"test.slow_rank=0", "test.slow_seconds=0.1"},
                                                        {"parallel.kind=server"},
                                                        {"communication.algorithm=halving"},
                                                        {"communication.bucket_mib=3"},
                                                        {"memory.recompute=[auto]", "memory.limit_gib=1"},
                                                        {"machine.device=cpu"},
                                                        {"precision=bf16"}};
  for (const std::vector<std::string>& keys : slower) EXPECT_FALSE(time_with(keys)) << keys[0];
  for (const char* key : {"learning_rate.base=0.5", "seed=9", "communication.timeout_seconds=9"})
    EXPECT_TRUE(time_with({key})) << key;
  EXPECT_TRUE(measured_runs(path(""), true).empty()) << "the run was on a CPU";
}

TEST_F(StudyTime, CountsTheSamplesOfBatchesThatGrow) {
  add_run("run", 2, 4096, 4.096);  // 0.1 ms a sample of ten equal batches
  add_step("run", 11, 999999);     // a later record, which belongs to no start
  EXPECT_NEAR(time(trial())->seconds, 40.96, 1e-9);
  std::filesystem::remove(path("run") + "/metrics.jsonl");
  add_step("run", 9, 3 * 4096);
  add_step("run", 10, 40 * 4096);  // the batch was four times as large on average
  EXPECT_NEAR(time(trial())->seconds, 10.24, 1e-9);
}

TEST_F(StudyTime, ARunThatCannotBeReadIsPassedOver) {
  add_run("good", 2, 4096, 4.096);
  std::filesystem::create_directories(path("empty"));
  std::filesystem::create_directories(path("cut"));
  std::ofstream(path("cut") + "/run.json") << "{\"starts\": [{\"ranks\": 2";
  add_run("no-step", 2, 4096, 0);
  std::filesystem::create_directories(path("running"));
  std::ofstream(path("running") + "/run.json") << "{\"outcome\": \"not ended\", \"starts\": [{\"ranks\": 2}]}";
  EXPECT_EQ(measured_runs(path("")).size(), 1u);
  EXPECT_TRUE(measured_runs(path("nowhere")).empty());
}

TEST_F(StudyTime, ComesFromAPreflightFileOfTheSameModel) {
  Preflight p;
  p.has_step = true;
  p.step.model = model_keys(trial().experiment);
  p.step.micro_batch = p.step.rows_per_rank = 4096;
  p.step.forward = 0.1, p.step.backward = 0.2, p.step.update = 0.01;
  p.step.passes = {{4096, 0.1, 0.2}};
  p.step.seconds = p.step.input_seconds = 0.31;
  p.step.parameters = p.step.elements = 1000;
  Trial alone = trial();
  alone.ranks = 1;
  const auto expected = time(alone, {p});
  ASSERT_TRUE(expected);
  EXPECT_NEAR(expected->seconds, 31, 0.5);
  EXPECT_EQ(expected->from, "preflight");
  EXPECT_FALSE(time(trial(), {p}));  // two ranks, and no all-reduce was measured
  alone.experiment.model.hidden = 256;
  EXPECT_FALSE(time(alone, {p}));
}

}  // namespace
}  // namespace ringtrain
