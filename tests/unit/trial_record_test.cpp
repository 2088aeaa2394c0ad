// Tests what a study needs of a trial: places for its ranks (study/trial_launcher.h), a process that starts them
// (base/child_process.h), the report of its run, and its end as the run's files have it (study/trial_record.h).
#include "study/trial_record.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <new>
#include <nlohmann/json.hpp>
#include <set>

#include "base/child_process.h"
#include "base/error.h"
#include "base/system_limits.h"
#include "cluster/binding.h"
#include "config/reader.h"
#include "study/trial_launcher.h"
#include "tests/unit/golden.h"
#include "tests/unit/good_experiment.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

TEST(TrialOverrides, AreNumbersAndListsInJson) {
  const std::vector<std::string> overrides = {"model.kind=cnn", "model.widths=[512,256]", "learning_rate.schedule=step",
                                              "learning_rate.milestones=[3,6.5]", "batch.schedule=[[2,3]]"};
  const nlohmann::json expected = {{"model.kind", "cnn"},
                                   {"model.widths", {512, 256}},
                                   {"learning_rate.schedule", "step"},
                                   {"learning_rate.milestones", {3, 6.5}},
                                   {"batch.schedule", "[[2, 3]]"}};
  const Experiment experiment = parse_experiment(good, "x.yaml", overrides);
  EXPECT_EQ(nlohmann::json::parse(overrides_to_json(overrides, experiment)), expected);
}

using TrialOutcomes = WithFolder;

// tests/e2e/test_report_verdicts.py expects the same of results/reporting/runs.py.
TEST_F(TrialOutcomes, ARunThatEndsAboveItsFirstStepAndAboveGuessingRanAway) {
  for (const nlohmann::json& run : golden("ends_diverged.json")) {
    SCOPED_TRACE(run.dump());
    std::ofstream out(path("metrics.jsonl"), std::ios::trunc);
    for (int i = 0; i < run["losses"]; ++i)
      out << nlohmann::json{{"step", run["first_step"].get<int>() + i}, {"loss", run[i == 0 ? "first" : "then"]}}
          << '\n';
    out.close();
    nlohmann::json starts = {{{"ranks", 1}}, {{"guessing_loss", run["guessing"]}}, {{"ranks", 2}}};
    nlohmann::json record{{"outcome", "finished"}, {"starts", starts}};
    std::ofstream(path("run.json")) << record;
    EXPECT_EQ(read_outcome(path("")).ran_away, run["diverged"].get<bool>());
    record["end"] = "target reached";
    std::ofstream(path("run.json")) << record;
    EXPECT_FALSE(read_outcome(path("")).ran_away);
  }
}

using Places = std::vector<std::size_t>;

Slots on_nodes(const std::string& tasks, std::int64_t count = 0) {
  return Slots(slots_of_job({"a", "b", "c"}, tasks, count));
}

TEST(TrialSlots, ATrialThatFitsIntoANodeStaysOnItAndFillsTheFullestFirst) {
  Slots slots = on_nodes("4(x2)");
  EXPECT_EQ(slots.count(), 8);
  EXPECT_EQ(slots.take(3), (Places{0, 1, 2}));
  EXPECT_EQ(slots.take(2), (Places{4, 5}));
  EXPECT_EQ(slots.take(1), (Places{3})) << "the node with one free slot";
  EXPECT_EQ(slots.take(3), std::nullopt) << "two slots are free, on the second node";
  slots.give_back({0, 1, 2});
  EXPECT_EQ(slots.take(3), (Places{0, 1, 2}));
  EXPECT_EQ(slots.take(2), (Places{6, 7}));
  EXPECT_EQ(slots.take(1), std::nullopt);
}

TEST(TrialSlots, ALargeTrialTakesSlotsOfTheEmptiestNodes) {
  Slots slots = on_nodes("2(x3)");
  EXPECT_EQ(slots.take(1), (Places{0}));
  EXPECT_EQ(slots.take(4), (Places{2, 3, 4, 5}));
  EXPECT_EQ(slots.take(4), std::nullopt);
  EXPECT_EQ(slots.take(1), (Places{1}));
}

TEST(TrialSlots, SlurmsNumbersOfTasksAreRead) {
  EXPECT_EQ(numbers_of_nodes("4(x2),3"), (std::vector<int>{4, 4, 3}));
  EXPECT_EQ(numbers_of_nodes("16"), std::vector<int>{16});
  for (const char* bad : {"4(x", "4(x2", "x", "0", "4(x0)", "4,,2", "4 2"})
    expect_contains(message_of([&] { numbers_of_nodes(bad); }), "expected numbers such as 4(x2),3");
  EXPECT_EQ(on_nodes("4,2,1", 5).count(), 5);
  expect_contains(message_of([] { on_nodes("4,2,1", 8); }), "--ranks is 8, and the Slurm job has 7 tasks");
}

TEST(TrialSlots, OfThisMachineHaveCoresOfTheirOwnUntilThereAreMoreSlotsThanCores) {
  const auto all = slots_of_machine(0, 0);
  std::set<int> used;
  for (const Slot& slot : all) {
    EXPECT_EQ(cores_of(slot.cpus).size(), 1u);
    for (const int cpu : slot.cpus) EXPECT_TRUE(used.insert(cpu).second) << "CPU " << cpu << " is in two slots";
  }
  EXPECT_EQ(cores_of(slots_of_machine(1, 0)[0].cpus).size(), all.size());
  const auto many = slots_of_machine(std::ssize(all) + 1, 0);
  EXPECT_EQ(many.back().cpus, many.front().cpus);
  EXPECT_EQ(slots_of_machine(0, 3).size(), 3u) << "one for each GPU";
  EXPECT_EQ(slots_of_machine(4, 3).back().gpu, 0) << "they share GPUs";
}

using TrialFiles = WithFolder;

TEST_F(TrialFiles, AReportIsReadAsItWasWrittenAndTheFirstErrorStaysUnlessTheRunHasDiverged) {
  const std::string file = path("report");
  EXPECT_EQ(read_report(file), std::nullopt);
  write_report(file, {TrialReport::End::paused, "", "", ""});
  EXPECT_EQ(read_report(file)->end, TrialReport::End::paused);
  std::filesystem::remove(file);
  write_report(file, report_of(Error("rank 0 has ended")));
  write_report(file, report_of(Error("the disk is full")));
  EXPECT_EQ(read_report(file)->error, "rank 0 has ended");
  write_report(file, report_of(Diverged("step 3: the loss is nan", "lower the rate")));
  write_report(file, report_of(Error("the disk is full")));
  const auto report = read_report(file);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->end, TrialReport::End::diverged);
  EXPECT_EQ(report->error, "step 3: the loss is nan");
  EXPECT_EQ(report->hint, "lower the rate");
  expect_contains(report->thrown_at, "trial_record_test.cpp:");
  EXPECT_EQ(report_of(std::bad_alloc()).error, out_of_memory);
  expect_contains(report_of(std::bad_alloc()).hint, "a smaller batch.micro");
  for (const char* damaged : {"", "[]", "{\"end\": \"ended\"}", "{\"end\": 3}", "{\"end\": \"fin"}) {
    std::ofstream(file, std::ios::trunc) << damaged;
    EXPECT_EQ(read_report(file), std::nullopt) << damaged;
  }
}

bool lives(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  const std::string text(std::istreambuf_iterator<char>(in), {});
  return !text.empty() && text.find(") Z ") == std::string::npos;
}

int code_of(ChildProcess& process) {
  while (!process.ended()) ::usleep(1000);
  return *process.ended();
}

TEST_F(TrialFiles, AProgramSaysHowItHasEndedAndItsWordsAreAppended) {
  const auto shell = [&](const char* line, const std::map<std::string, std::string>& variables = {}) {
    ChildProcess process({"sh", "-c", line}, path("log"), variables);
    return code_of(process);
  };
  ::setenv("RINGTRAIN_TEST_GONE", "here", 1);
  EXPECT_EQ(shell("echo $A; exit 7", {{"A", "one"}}), 7);
  EXPECT_EQ(shell("echo two${RINGTRAIN_TEST_GONE-} >&2; kill -SEGV $$", {{"RINGTRAIN_TEST_GONE", ""}}), 128 + SIGSEGV);
  ::unsetenv("RINGTRAIN_TEST_GONE");
  std::ifstream in(path("log"));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "one\ntwo\n");
  expect_contains(message_of([&] { ChildProcess({"no-such-program"}, path("log"), {}); }),
                  "no-such-program was not found");
}

TEST_F(TrialFiles, AProgramGetsSignalsAndEndsWithItsOwner) {
  ChildProcess process({"sh", "-c", "trap 'exit 3' USR1; echo ready; while :; do sleep 0.01; done"}, path("log"), {});
  while (std::filesystem::file_size(path("log")) == 0) ::usleep(1000);
  EXPECT_EQ(process.ended(), std::nullopt);
  process.send(SIGUSR1);
  EXPECT_EQ(code_of(process), 3);
  // A process that is killed takes its program with it.
  const pid_t owner = ::fork();
  if (owner == 0) {
    const ChildProcess child({"sh", "-c", "echo $$ > " + path("pid") + "; exec sleep 60"}, path("log"), {});
    for (;;) ::pause();
  }
  pid_t pid = 0;
  while (!(std::ifstream(path("pid")) >> pid)) ::usleep(1000);
  ::kill(owner, SIGKILL);
  for (int tries = 0; lives(pid) && tries < 5000; ++tries) ::usleep(1000);
  EXPECT_FALSE(lives(pid));
  ::waitpid(owner, nullptr, 0);
}

}  // namespace
}  // namespace ringtrain
