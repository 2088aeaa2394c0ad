// Tests places in a run: how they are written, the step at which they are reached, and the course of a branch.
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/backend.h"
#include "config/experiment.h"
#include "config/reader.h"
#include "config/schema_text.h"
#include "run/course.h"
#include "tests/unit/good_experiment.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

TEST(RunPoint, IsEpochsOrSteps) {
  EXPECT_EQ(parse_run_point("2"), (RunPoint{2, false}));
  EXPECT_EQ(parse_run_point("0.5"), (RunPoint{0.5, false}));
  EXPECT_EQ(parse_run_point("1 epoch"), (RunPoint{1, false}));
  EXPECT_EQ(parse_run_point("500 steps"), (RunPoint{500, true}));
  EXPECT_EQ(parse_run_point("500steps"), (RunPoint{500, true}));
  for (const char* bad : {"", "steps", "-1", "1.5 steps", "2 weeks", "500 stepss", "nan", "inf", "1e7", "2 epochs 3"})
    EXPECT_FALSE(parse_run_point(bad)) << bad;
  EXPECT_EQ(to_string(RunPoint{500, true}), "500 steps");
  EXPECT_EQ(to_string(RunPoint{0.5, false}), "0.5");
  EXPECT_EQ(compact_text({500, true}), "500steps");
}

TEST(RunPoint, NamesACheckpointBehindTheRunsFolder) {
  const auto source = parse_run_and_point("results/names/parent@500steps");
  ASSERT_TRUE(source);
  EXPECT_EQ(source->run, "results/names/parent");
  EXPECT_EQ(source->point, (RunPoint{500, true}));
  for (const char* file : {"a/checkpoints/step-000000005.h5", "a@2/checkpoints/best.h5", "@2", "a@b"})
    EXPECT_FALSE(parse_run_and_point(file)) << file;
  EXPECT_EQ(run_of_source("a/b@2"), "a/b");
  EXPECT_EQ(run_of_source("a/b/checkpoints/step-000000005.h5"), "a/b");
}

TEST(RunPoint, IsReadFromTheExperimentAndWrittenBack) {
  const Experiment e = parse_experiment(good + "checkpoint: {keep_at: [0, 0.5, 2, 500 steps]}\n", "x.yaml", {});
  EXPECT_EQ(e.checkpoint.keep_at, (std::vector<RunPoint>{{0, false}, {0.5, false}, {2, false}, {500, true}}));
  EXPECT_EQ(parse_experiment(to_yaml(e), "x.yaml", {}), e);
  EXPECT_EQ(parse_experiment(good, "x.yaml", {"checkpoint.keep_at=[0, 0.5, 2, 500 steps]"}).checkpoint, e.checkpoint);
  const auto refusal = [](const std::string& list) {
    return message_of([&] { parse_experiment(good + "checkpoint: {keep_at: " + list + "}\n", "x.yaml", {}); });
  };
  EXPECT_NE(refusal("[1, 2.5 steps]")
                .find("x.yaml:8:27: checkpoint.keep_at item 2 is '2.5 steps', expected a list such "
                      "as [0.5, 2, 500 steps], each a number of epochs"),
            std::string::npos)
      << refusal("[1, 2.5 steps]");
  EXPECT_NE(refusal("2").find("checkpoint.keep_at is '2'"), std::string::npos);
}

// Returns the plan of a run on 1000 names. By default an epoch has 15 updates of 64, and 40 samples are left over.
RunPlan plan_from_point(const std::vector<std::string>& overrides,
                        const std::optional<BranchPoint>& branch = std::nullopt) {
  DatasetIndex index;
  index.prefix = "some/train";
  index.kind = "text";
  index.total = 1000;
  index.text.context_length = 8;
  index.text.vocabulary = {"*", "+", "a"};
  index.shards.resize(1);
  index.shards[0].count = 1000;
  index.dataset_uuid = "1234";
  const auto backend = make_cpu_backend(1);
  return make_run_plan(parse_experiment(good, "x.yaml", overrides), index, nullptr, 1, *backend, {}, branch);
}

// Walks through the whole course and asks after every update, as training does.
std::vector<std::int64_t> kept_by_walking(const RunPlan& plan) {
  std::vector<std::int64_t> kept;
  Position before = plan.branch.position, p = before;
  if (p.step == 0 && reaches_kept_point(plan, p, p)) kept.push_back(0);
  while (!is_over(plan, p)) {
    before = p;
    p = plan.course.after(p);
    if (reaches_kept_point(plan, before, p)) kept.push_back(p.step);
  }
  return kept;
}

TEST(KeptPoints, AreReachedOnceAtTheFirstStepAtOrAfterThem) {
  const RunPlan plan = plan_from_point({"checkpoint.keep_at=[0, 0.5, 1, 2.01, 100 steps, 9.99, 12]"});
  EXPECT_EQ(kept_by_walking(plan), (std::vector<std::int64_t>{0, 8, 15, 31, 100, 150}));
  const std::vector<std::int64_t> said = {0, 8, 15, 31, 100, 150, 180};
  for (std::size_t i = 0; i < said.size(); ++i)
    EXPECT_EQ(position_of(plan.experiment.checkpoint.keep_at[i], plan)->step, said[i]);
  EXPECT_NE(describe_kept(plan).find("12 epochs: after the end"), std::string::npos) << describe_kept(plan);
  EXPECT_NE(describe_kept(plan).find("0.5 epochs: step 8 (epoch 0.533333)"), std::string::npos) << describe_kept(plan);
}

// In binary, 0.28 x 25 is more than 7.
TEST(KeptPoints, EpochsThatAreNotExactInBinaryAreNotAStepLate) {
  const RunPlan plan = plan_from_point({"batch.global=40", "batch.worker=8", "checkpoint.keep_at=[0.28, 0.56, 2.2]"});
  ASSERT_EQ(plan.schedule.steps_per_epoch, 25);
  EXPECT_EQ(kept_by_walking(plan), (std::vector<std::int64_t>{7, 14, 55}));
}

TEST(KeptPoints, AreFoundWhereTheBatchChangesAndWhereEpochsKeepTheirRest) {
  for (const std::vector<std::string>& keys : {std::vector<std::string>{"batch.schedule=[[1.5, 2], [3, 4]]"},
                                               {"data.last_batch=smaller"},
                                               {"data.last_batch=smaller", "batch.schedule=[[2.3, 3]]"}}) {
    std::vector<std::string> all = keys;
    all.push_back("checkpoint.keep_at=[0.3, 1, 1.7, 3.5, 40 steps, 8]");
    const RunPlan plan = plan_from_point(all);
    std::vector<std::int64_t> said;
    for (const RunPoint& point : plan.experiment.checkpoint.keep_at) said.push_back(position_of(point, plan)->step);
    std::ranges::sort(said);
    EXPECT_EQ(kept_by_walking(plan), said) << keys[0];
  }
}

// Returns the point of a run with these keys after `step` updates.
BranchPoint point_at_step(const std::vector<std::string>& overrides, std::int64_t step) {
  const RunPlan plan = plan_from_point(overrides);
  Position p;
  while (p.step < step) p = plan.course.after(p);
  return {p, 77};
}

TEST(Branch, KeepsTheScheduleByTheSamplesAndMultipliesBatchAndRate) {
  const std::vector<std::string> keys = {"learning_rate.base=0.1", "learning_rate.schedule=cosine",
                                         "learning_rate.warmup_steps=30", "learning_rate.warmup_from=zero"};
  const RunPlan parent = plan_from_point(keys);
  std::vector<std::string> branch = keys;
  for (const char* key : {"branch.from=run@3", "batch.global=256", "branch.batch_factor=4", "branch.rate_factor=2",
                          "branch.samples=1500"})
    branch.push_back(key);
  const BranchPoint point = point_at_step(keys, 20);
  const RunPlan plan = plan_from_point(branch, point);
  EXPECT_EQ(plan.batch.global, 256);
  EXPECT_EQ(plan.schedule.total_steps, parent.schedule.total_steps);
  EXPECT_EQ(plan.schedule.global_batch, 64);
  EXPECT_EQ(plan.updates, 20 + 6);  // ceil(1500 / 256)
  for (Position p = plan.branch.position; !is_over(plan, p); p = plan.course.after(p))
    EXPECT_EQ(rate_at(plan, p), 2 * rate_at(parent, p)) << p.step;
  EXPECT_EQ(plan.course.samples_at(plan.branch.position), 256);
}

TEST(Branch, OfOnceTheBatchTakesTheCourseOfItsRun) {
  const std::vector<std::string> keys = {"batch.schedule=[[2, 2], [4, 8]]", "batch.largest=256",
                                         "learning_rate.schedule=exponential"};
  const RunPlan parent = plan_from_point(keys);
  std::vector<std::string> branch = keys;
  branch.push_back("branch.from=run@20steps");
  const RunPlan plan = plan_from_point(branch, point_at_step(keys, 20));
  EXPECT_EQ(plan.course, parent.course);
  EXPECT_EQ(plan.updates, parent.updates);
  // The plan of a branch whose parent has not run yet starts at the same place.
  const RunPlan planned = plan_from_point(branch);
  EXPECT_EQ(planned.branch.position, plan.branch.position);
}

TEST(Branch, MultipliesEveryBatchOfItsRunsSchedule) {
  const std::vector<std::string> keys = {
      "batch.schedule=[[2, 2], [4, 8]]", "batch.largest=512",     "batch.global=128", "branch.from=run@1",
      "branch.batch_factor=2",           "branch.rate_factor=1.5"};
  const RunPlan plan = plan_from_point(keys, point_at_step({keys[0], "batch.largest=256"}, 15));
  ASSERT_EQ(plan.course.stages.size(), 3u);
  EXPECT_EQ(plan.course.stages[0].batch, 128);
  EXPECT_EQ(plan.course.stages[1].batch, 256);
  EXPECT_EQ(plan.course.stages[2].batch, 512);
  EXPECT_DOUBLE_EQ(plan.course.stages[1].rate_factor, 1.5);
  EXPECT_DOUBLE_EQ(plan.course.stages[2].rate_factor, 0.75);
}

TEST(Branch, IsPartOfTheExperimentsIdByItsSourceAndFactors) {
  const std::vector<std::string> from = {"branch.from=run@1"};
  const auto id = [&](std::vector<std::string> more, std::uint64_t source) {
    more.push_back("branch.from=elsewhere@1");
    return experiment_id(plan_from_point(more, BranchPoint{point_at_step({}, 15).position, source}));
  };
  const std::string base = experiment_id(plan_from_point(from, BranchPoint{point_at_step({}, 15).position, 5}));
  EXPECT_EQ(id({}, 5), base);  // the path does not count
  EXPECT_NE(id({}, 6), base);
  EXPECT_NE(id({"batch.global=128", "branch.batch_factor=2"}, 5), base);
  EXPECT_NE(id({"branch.samples=1000"}, 5), base);
  EXPECT_NE(experiment_id(plan_from_point({})), base);
  EXPECT_EQ(experiment_id(plan_from_point({"checkpoint.keep_at=[1]"})), experiment_id(plan_from_point({})));
}

TEST(ExperimentId, DoesNotDependOnKeysWithoutAnEffect) {
  RunPlan plan = plan_from_point({});
  const std::string id = experiment_id(plan);
  plan.experiment.branch.samples += 1;  // the run is no branch
  plan.experiment.model.kernel += 2;    // the model is no cnn
  plan.experiment.model.channels = {7};
  EXPECT_EQ(experiment_id(plan), id);
  plan.experiment.model.hidden += 1;
  EXPECT_NE(experiment_id(plan), id);
}

std::string refusal(const std::vector<std::string>& overrides) {
  return message_of([&] { parse_experiment(good, "x.yaml", overrides); });
}

TEST(Branch, RefusesWhatContradictsIt) {
  const auto expect = [](const std::vector<std::string>& overrides, const std::string& words) {
    EXPECT_NE(refusal(overrides).find(words), std::string::npos) << refusal(overrides);
  };
  expect({"branch.batch_factor=2"}, "branch.batch_factor is 2 but branch.from is not given");
  expect({"branch.samples=2"}, "branch.samples is 2 but branch.from is not given");
  const std::string from = "branch.from=run@1";
  expect({from, "branch.batch_factor=3"},
         "branch.batch_factor is 3 but batch.global is 64, expected branch.batch_factor times");
  expect({from, "branch.batch_factor=2", "data.order=streams"}, "expected windows");
  expect({from, "branch.batch_factor=2", "batch.follow_noise=1", "batch.largest=256", "noise.small_batch=16"},
         "a batch that the noise does not change");
  EXPECT_EQ(refusal({from, "data.order=streams"}), "(no error)");
  EXPECT_EQ(refusal({from, "batch.global=32", "branch.batch_factor=0.5", "branch.samples=100", "stop.epochs=0"}),
            "(no error)");
  EXPECT_NE(message_of([] {
              plan_from_point({"branch.from=run@9", "branch.samples=5000", "learning_rate.schedule=cosine"},
                              point_at_step({}, 135));
            }).find("ends 960 samples later, expected no more"),
            std::string::npos);
  EXPECT_NE(message_of([] {
              plan_from_point({"branch.from=run@50", "branch.samples=1", "learning_rate.schedule=cosine"},
                              point_at_step({}, 700));
            }).find("ends 0 samples later, expected no more"),
            std::string::npos);
}

}  // namespace
}  // namespace ringtrain
