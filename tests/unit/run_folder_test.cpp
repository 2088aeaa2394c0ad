#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "base/table.h"
#include "base/version.h"
#include "run/folder.h"
#include "run/run_end.h"
#include "run/run_record.h"
#include "tests/unit/with_environment.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

// Works in a folder of its own, since results/ is relative to the working directory.
class RunFolderTest : public testing::Test {
 protected:
  RunFolderTest() : before_(fs::current_path()) {
    std::string name = (fs::temp_directory_path() / "ringtrain-run-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw Error("mkdtemp");
    fs::current_path(name);
    folder_ = name;
    experiment_.name = "demo";
  }
  ~RunFolderTest() override {
    fs::current_path(before_);
    fs::remove_all(folder_);
  }
  static bool always() { return true; }
  Experiment experiment_;
  fs::path folder_, before_;
};

std::string content_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// ---- Where ---------------------------------------------------------------------------------------------------------

TEST_F(RunFolderTest, DirectoryThenIdThenTimeDecideWhereARunLives) {
  EXPECT_TRUE(std::regex_match(run_folder_path(experiment_, false), std::regex("results/demo/\\d{8}-\\d{6}(-\\d+)?")));
  experiment_.run.id = "try1";
  EXPECT_EQ(run_folder_path(experiment_, false), "results/demo/try1");
  EXPECT_EQ(run_folder_path(experiment_, true), "results/demo/try1");
  experiment_.run.dir = "elsewhere/x";
  EXPECT_EQ(run_folder_path(experiment_, false), "elsewhere/x");
  experiment_.run = {};
  experiment_.run.id = "latest";
  expect_contains(message_of([&] { run_folder_path(experiment_, false); }), "'latest'");
}

TEST_F(RunFolderTest, RunsOfTheSameSecondGetFoldersOfTheirOwn) {
  std::set<std::string> paths;
  for (int i = 0; i < 5; ++i) paths.insert(run_folder_path(experiment_, false));
  EXPECT_EQ(paths.size(), 5u);
  EXPECT_TRUE(std::any_of(paths.begin(), paths.end(), [](auto& path) { return path.ends_with("-2"); }));
  for (const std::string& path : paths) RunFolder(path, false);
}

TEST_F(RunFolderTest, ResumeFollowsLatestToTheNewestRun) {
  expect_contains(message_of([&] { run_folder_path(experiment_, true); }), "no earlier run of 'demo'");
  const std::string first = run_folder_path(experiment_, false);
  RunFolder(first, false).become_latest();
  EXPECT_EQ(run_folder_path(experiment_, true), first);
  experiment_.run.id = "second";
  RunFolder(run_folder_path(experiment_, false), false).become_latest();
  experiment_.run.id.clear();
  EXPECT_EQ(run_folder_path(experiment_, true), "results/demo/second");
  EXPECT_EQ(fs::read_symlink("results/demo/latest"), "second") << "relative, so that results/ can be moved";
}

TEST_F(RunFolderTest, LatestStaysAtTheRunBeforeUntilTheNewOneHasStarted) {
  RunFolder("results/demo/first", false).become_latest();
  const RunFolder second("results/demo/second", false);
  EXPECT_EQ(fs::read_symlink("results/demo/latest"), "first");
  second.become_latest();
  EXPECT_EQ(fs::read_symlink("results/demo/latest"), "second");
}

TEST_F(RunFolderTest, ALatestThatIsAFolderStaysAndAWarningSaysHowToGoOn) {
  fs::create_directories("results/demo/latest");
  testing::internal::CaptureStderr();
  RunFolder("results/demo/first", false).become_latest();
  expect_contains(testing::internal::GetCapturedStderr(), "ringtrain train results/demo/first --resume");
  EXPECT_TRUE(fs::is_directory(fs::symlink_status("results/demo/latest")));
}

TEST_F(RunFolderTest, AFolderOfTheUsersChoiceGetsNoLink) {
  const RunFolder run("somewhere/deep/run", false);
  run.become_latest();
  EXPECT_TRUE(fs::is_directory("somewhere/deep/run"));
  EXPECT_FALSE(fs::exists(fs::symlink_status("somewhere/deep/latest")));
}

// ---- What may be in it ----------------------------------------------------------------------------------------------

TEST_F(RunFolderTest, ANewRunNeverEntersAFolderThatHoldsSomething) {
  fs::create_directories("run");
  std::ofstream("run/metrics.jsonl") << "{}\n";
  const std::string message = message_of([] { RunFolder("run", false); });
  expect_contains(message, "run: the run folder is not empty");
  expect_contains(message, "--resume");
  expect_contains(message, "run.dir");
  EXPECT_EQ(content_of("run/metrics.jsonl"), "{}\n");
  EXPECT_EQ(message_of([] { RunFolder("run", true); }), "(no error)");
}

TEST_F(RunFolderTest, AnEmptyFolderServesBothKindsOfStart) {
  fs::create_directories("a");
  EXPECT_EQ(message_of([] { RunFolder("a", false); }), "(no error)");
  EXPECT_EQ(message_of([] { RunFolder("a/", false); }), "(no error)") << "an earlier lock file is nothing";
  std::ofstream("a/.nfs0000000001a2b3c4") << "a removed file that a process has open\n";
  EXPECT_EQ(message_of([] { RunFolder("a", false); }), "(no error)");
  EXPECT_EQ(message_of([] { RunFolder("a", true); }), "(no error)");
}

TEST_F(RunFolderTest, TheProbeOfTheFolderIsGoneAgain) {
  const RunFolder run("a", false);
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator("a")) names.insert(entry.path().filename().string());
  EXPECT_EQ(names, std::set<std::string>{".lock"});
}

TEST_F(RunFolderTest, AClaimLooksAgainWhenItHasTheLock) {
  int looks = 0;
  EXPECT_NE(RunFolder::claim("trial", [&] { return ++looks <= 2; }), nullptr);
  EXPECT_EQ(looks, 2);
  looks = 0;
  EXPECT_EQ(RunFolder::claim("trial", [&] { return ++looks == 1; }), nullptr) << "another one was faster";
  EXPECT_NE(RunFolder::claim("trial", always), nullptr) << "and the lock is free again";
  EXPECT_EQ(RunFolder::claim("other", [] { return false; }), nullptr);
  EXPECT_FALSE(fs::exists("other")) << "nothing is locked where nothing is to be done";
  const auto held = RunFolder::claim("trial", always);
  EXPECT_EQ(RunFolder::claim("trial", always), nullptr);
}

TEST_F(RunFolderTest, AStudyAndTheRunOfItsTrialHaveLocksOfTheirOwn) {
  auto study = RunFolder::claim("results/study/trial", always);
  ASSERT_NE(study, nullptr);
  for (const char* name : {trial_file_name, trial_experiment_name, trial_log_name, trial_report_name})
    std::ofstream(fs::path("results/study/trial") / name) << "{}\n";
  auto run = std::make_unique<RunFolder>("results/study/trial", true);  // a study's files make no run
  run->become_latest();
  EXPECT_FALSE(fs::exists("results/study/latest")) << "a trial is not the newest run of the study's name";
  study.reset();
  EXPECT_EQ(RunFolder::claim("results/study/trial", always), nullptr)
      << "the study has ended, and the run still writes";
  run.reset();
  EXPECT_NE(RunFolder::claim("results/study/trial", always), nullptr);
}

TEST_F(RunFolderTest, ResumeWantsAnEarlierRun) {
  expect_contains(message_of([] { RunFolder("none", true); }), "none: no such run folder to resume");
  EXPECT_FALSE(fs::exists("none"));
  fs::create_directories("home");
  std::ofstream("home/thesis.tex") << "x";
  expect_contains(message_of([] { RunFolder("home", true); }), "not a run");
  std::ofstream("file") << "x";
  expect_contains(message_of([] { RunFolder("file", false); }), "is not a folder");
  expect_contains(message_of([] { RunFolder("file/run", false); }), "file/run: ");
}

TEST_F(RunFolderTest, ALinkThatPointsToNothingIsNamed) {
  fs::create_directory_symlink("gone", "link");
  for (const char* path : {"link", "link/run"})
    expect_contains(message_of([&] { RunFolder(path, false); }), "[link is a link to gone, which is not there: make");
  EXPECT_TRUE(fs::is_symlink("link"));
}

TEST_F(RunFolderTest, AnyFileOfARunBesideItsExperimentMakesTheFolderARun) {
  fs::create_directories("run/checkpoints");
  const auto source = [] { return source_of_run({"run", {}}, true).folder; };
  expect_contains(message_of(source), "run is a folder without experiment.yaml, expected a run's folder");
  std::ofstream("run/experiment.yaml") << "name: demo\n";
  expect_contains(message_of(source), "run is a folder without run.json, metrics.jsonl and checkpoints, expected");
  for (const char* name : {"run/run.json", "run/metrics.jsonl", "run/checkpoints/step-000000010.h5"}) {
    std::ofstream(name) << "x";
    EXPECT_TRUE(fs::equivalent(source(), "run")) << name;
    fs::remove(name);
  }
}

TEST_F(RunFolderTest, AFolderThatIsNotThereIsNoExperimentFile) {
  expect_contains(message_of([] {
                    source_of_run({"results/none", {}}, true);
                  }),
                  "results/none: there is no such folder or file, expected a run's folder or an experiment file");
}

TEST_F(RunFolderTest, AFolderThatCannotBeWrittenIsAnErrorAtTheStart) {
  const auto mounted = [](const char* path, unsigned long flags, const char* options) {
    fs::create_directories(path);
    return ::mount("tmpfs", path, "tmpfs", flags, options) == 0;
  };
  if (!mounted("readonly", MS_RDONLY, "size=1m")) GTEST_SKIP() << "needs root to mount small disks";
  const bool both = mounted("full", 0, "size=1m");
  std::ofstream("full/data") << std::string(48 << 10, 'x');
  const std::string readonly = message_of([] { RunFolder("readonly/run", false); });
  const std::string full = message_of([] { RunFolder("full/run", false); });
  const bool left = fs::exists("full/run");
  ::umount("readonly");
  ::umount("full");
  ASSERT_TRUE(both);
  expect_contains(readonly, "Read-only file system [set run.dir");
  expect_contains(full, "No space left on device [free some space");
  EXPECT_FALSE(left) << "a folder that nothing can be written to stands in the way of the next try";
}

// ---- Two jobs -----------------------------------------------------------------------------------------------------

// Starts a child process that enters the folder and stays there. Returns when the child is in it.
pid_t occupy(const std::string& path) {
  int ready[2];
  EXPECT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunFolder run(path, false);
    [[maybe_unused]] const ssize_t written = ::write(ready[1], "x", 1);
    ::pause();
  }
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1);
  ::close(ready[0]);
  ::close(ready[1]);
  return child;
}

TEST_F(RunFolderTest, ASecondJobIsRefusedUntilTheFirstIsGoneEvenByAKill) {
  const pid_t child = occupy("run");
  const std::string message = message_of([] { RunFolder("run", true); });
  expect_contains(message, "another job works in this run folder");
  expect_contains(message, cat("pid ", child));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(message_of([] { RunFolder("run", true); }), "(no error)");
}

TEST_F(RunFolderTest, TheLockIsReleasedWithTheObject) {
  const auto enter = [] { RunFolder("run", true); };
  {
    const RunFolder run("run", false);
    expect_contains(message_of(enter), "another job works");
  }
  EXPECT_EQ(message_of(enter), "(no error)");
}

TEST_F(RunFolderTest, WhereThereAreNoLocksTheTextTellsWhetherTheOwnerIsGone) {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(lock_owner_is_gone(cat(host, " pid ", child)));
  EXPECT_FALSE(lock_owner_is_gone(cat(host, " pid ", ::getpid())));
  EXPECT_FALSE(lock_owner_is_gone(cat("some-other-host pid ", child))) << "cannot be seen from here";
  EXPECT_TRUE(lock_owner_is_gone(""));
  EXPECT_TRUE(lock_owner_is_gone("hal")) << "cut off while being written";
}

TEST(LockOwner, OfAnEarlierLifeOfThisJobIsGoneOnWhateverHostItWas) {
  const WithEnvironment environment(Variables{{"SLURM_JOB_ID", "4711"}, {"SLURM_RESTART_COUNT", "2"}});
  EXPECT_TRUE(lock_owner_is_gone("some-other-host pid 5 job 4711 restart 1"));
  EXPECT_FALSE(lock_owner_is_gone("some-other-host pid 5 job 4711 restart 2")) << "another step of this life";
  EXPECT_FALSE(lock_owner_is_gone("some-other-host pid 5 job 4712 restart 0")) << "another job";
  EXPECT_FALSE(lock_owner_is_gone("some-other-host pid 5"));
}

TEST_F(RunFolderTest, ALockThatALostNodeStillHoldsForAnEarlierLifeOfThisJobIsWaitedFor) {
  pid_t child = 0;
  {
    const WithEnvironment first(Variables{{"SLURM_JOB_ID", "4711"}, {"SLURM_RESTART_COUNT", "0"}});
    child = occupy("run");
  }
  const auto enter = [] { RunFolder("run", true); };
  {
    const WithEnvironment other(Variables{{"SLURM_JOB_ID", "4712"}, {"SLURM_RESTART_COUNT", "1"}});
    expect_contains(message_of(enter), "another job works");
  }
  std::thread end([child] {
    ::usleep(200'000);
    ::kill(child, SIGKILL);
  });
  const WithEnvironment second(Variables{{"SLURM_JOB_ID", "4711"}, {"SLURM_RESTART_COUNT", "1"}});
  EXPECT_EQ(message_of(enter), "(no error)");
  end.join();
  ::waitpid(child, nullptr, 0);
}

// ---- Files --------------------------------------------------------------------------------------------------------

TEST_F(RunFolderTest, WritingAtomicallyReplacesAllOrNothing) {
  write_file_atomically("a.txt", "one\n");
  write_file_atomically("a.txt", std::string("two\0\n", 5));
  EXPECT_EQ(content_of("a.txt"), std::string("two\0\n", 5));
  write_file_atomically("a.txt", "");
  EXPECT_EQ(content_of("a.txt"), "");
  expect_contains(message_of([] { write_file_atomically("none/a.txt", "x"); }), "none/a.txt");
  fs::create_directories("b.txt/x");
  EXPECT_NE(message_of([] { write_file_atomically("b.txt", "x"); }), "(no error)");
  EXPECT_FALSE(fs::exists("b.txt.tmp"));
}

TEST_F(RunFolderTest, AFileThatCannotBeWrittenLeavesTheOlderOne) {
  write_file_atomically("a.txt", "one\n");
  const auto fails = [] {
    publish_written("a.txt.tmp", "a.txt", [] {
      std::ofstream("a.txt.tmp") << "half";
      throw Error("the disk is full");
    });
  };
  EXPECT_EQ(message_of(fails), "the disk is full []");
  EXPECT_EQ(file_text("a.txt"), "one\n");
  EXPECT_FALSE(fs::exists("a.txt.tmp"));
  EXPECT_EQ(file_text("none"), "");
  EXPECT_EQ(file_text("."), "") << "a folder has no text";
  ASSERT_EQ(::mkfifo("pipe", 0600), 0);
  EXPECT_EQ(file_text("pipe"), "") << "a pipe without a writer never ends";
}

TEST_F(RunFolderTest, AnUnusedPathIsTheWantedOneOrTheFirstFreeNumber) {
  EXPECT_EQ(unused_path("a.b/x.yaml"), "a.b/x.yaml");
  fs::create_directories("a.b");
  std::ofstream("a.b/x.yaml") << "1";
  EXPECT_EQ(unused_path("a.b/x.yaml"), "a.b/x-2.yaml");
  fs::create_symlink("nowhere", "a.b/x-2.yaml");
  EXPECT_EQ(unused_path("a.b/x.yaml"), "a.b/x-3.yaml") << "a link that leads nowhere is in use, too";
}

nlohmann::json record_of_run() {
  return nlohmann::json::parse(content_of("run.json"));
}

RunRecord example_record() {
  RunRecord record;
  record.plan.experiment.name = "demo";
  record.command_line = {"bin/ringtrain", "train", "x y.yaml",
                         "bad\xff"
                         "bytes"};
  record.hosts = {"n1", "n1", "n2"};
  record.launcher = "srun --mpi=pmix";
  record.plan.train.prefix = "data/names-train";
  record.plan.train.dataset_uuid = "1234";
  record.plan.samples_per_epoch = 1000;
  record.memory = {{"weights", 400}, {"activations", 1ll << 40}};
  return record;
}

TEST_F(RunFolderTest, RunRecordTellsWhatRanAndHowItEnded) {
  ::setenv("SLURM_JOB_ID", "4711", 1);
  ::unsetenv("SLURM_RESTART_COUNT");
  record_start(".", example_record());
  ::unsetenv("SLURM_JOB_ID");
  nlohmann::json json = record_of_run();
  EXPECT_EQ(json["outcome"], "not ended");
  EXPECT_FALSE(has_finished("."));
  const nlohmann::json start = json["starts"][0];
  EXPECT_EQ(start["commit"], build_commit());
  EXPECT_EQ(start["command_line"][2], "x y.yaml");
  EXPECT_EQ(start["hosts"], (nlohmann::json{{"n1", {0, 1}}, {"n2", {2}}}));
  EXPECT_EQ(start["launcher"], "srun --mpi=pmix");
  EXPECT_EQ(start["ranks"], 3);
  EXPECT_EQ(start["train"]["samples"], 1000);
  EXPECT_EQ(start["memory_bytes_per_rank"]["activations"], 1ll << 40);
  EXPECT_EQ(start["slurm"], (nlohmann::json{{"SLURM_JOB_ID", "4711"}}));
  EXPECT_TRUE(std::regex_match(start["started"].get<std::string>(), std::regex("\\d{4}-\\d\\d-\\d\\dT[\\d:]{8}Z")));
  record_end(".", {.outcome = "finished",
                   .progress = {.position = {.step = 20},
                                .elapsed_seconds = 1.5,
                                .best_loss = 1.25,
                                .best_step = 10,
                                .has_best = true},
                   .end = "target reached"});
  json = record_of_run();
  EXPECT_TRUE(has_finished("."));
  EXPECT_EQ(json["outcome"], "finished");
  EXPECT_EQ(json["end"], "target reached");
  EXPECT_EQ(json["starts"][0]["end"], "target reached");
  EXPECT_EQ(json["final_step"], 20);
  EXPECT_EQ(json["best"], (nlohmann::json{{"metric", "validation_loss"}, {"value", 1.25}, {"step", 10}}));
  EXPECT_EQ(json["starts"][0]["outcome"], "finished");
  EXPECT_EQ(json["starts"][0]["commit"], build_commit());
}

TEST(RunEndTest, SaysWhyARunEndedByItself) {
  StopConfig stop;
  stop.seconds = 60;
  EXPECT_EQ(end_word({}, stop), "all steps done");
  EXPECT_EQ(describe_end({}, stop), "");
  EXPECT_EQ(end_word({RunEnd::Cause::seconds}, stop), "stop.seconds");
  EXPECT_EQ(describe_end({RunEnd::Cause::seconds}, stop), "stop.seconds 60 is over");
  EXPECT_EQ(end_word({RunEnd::Cause::recorded_order}, stop), "end of the recorded order");
  EXPECT_EQ(describe_end({RunEnd::Cause::recorded_order}, stop), "the recorded order of arrival ends here");

  stop.target_metric = "validation_loss";
  stop.target_value = 1.42;
  EXPECT_EQ(end_word({RunEnd::Cause::target, 1.41873}, stop), "target reached");
  EXPECT_EQ(describe_end({RunEnd::Cause::target, 1.41873}, stop), "validation_loss reached 1.42 (1.4187)");
  EXPECT_EQ(end_word({}, stop), "target not reached");
  EXPECT_EQ(describe_end({}, stop), "stop.target_value 1.42 was not reached");
  EXPECT_EQ(end_word({RunEnd::Cause::seconds}, stop), "stop.seconds");
  EXPECT_EQ(describe_end({RunEnd::Cause::seconds}, stop),
            "stop.seconds 60 is over, and stop.target_value 1.42 was not reached");
}

TEST_F(RunFolderTest, EveryStartOfAResumedRunIsKept) {
  record_start(".", example_record());  // no end, as in a killed run
  RunRecord again = example_record();
  again.launcher = "mpirun";
  again.resumed_from_step = 10;
  record_start(".", again);
  record_end(".", {.outcome = "stopped by SIGTERM", .progress = {.position = {.step = 12}}});
  const nlohmann::json json = record_of_run();
  ASSERT_EQ(json["starts"].size(), 2u);
  EXPECT_EQ(json["starts"][0].value("outcome", ""), "killed");
  EXPECT_EQ(json["starts"][0]["launcher"], "srun --mpi=pmix");
  EXPECT_EQ(json["starts"][1]["launcher"], "mpirun");
  EXPECT_EQ(json["starts"][1]["resumed_from_step"], 10);
  EXPECT_EQ(json["outcome"], "stopped by SIGTERM");
}

TEST_F(RunFolderTest, ADamagedRunRecordIsPutAsideAndTheRunGoesOn) {
  std::ofstream("run.json") << "{\"starts\": [";
  testing::internal::CaptureStderr();
  record_start(".", example_record());
  expect_contains(testing::internal::GetCapturedStderr(), "warning: ./run.json: cannot be read");
  EXPECT_EQ(record_of_run()["starts"].size(), 1u);
  EXPECT_EQ(content_of("run.json.damaged"), "{\"starts\": [");
}

TEST(Table, ValuesStartInOneColumnWhateverTheAlphabet) {
  Table table;
  table.section("Batch");
  table.row("global", "4096");
  table.row("\u00fcber", "1");  // 4 columns in 5 bytes
  table.row("memory", "a\nb");
  EXPECT_EQ(table.str(), "Batch\n  global  4096\n  \u00fcber    1\n  memory  a\n          b\n");
  EXPECT_EQ(with_thousands(1234567), "1,234,567");
  EXPECT_EQ(with_thousands(-123), "-123");
  EXPECT_EQ(with_thousands(123456), "123,456");
  EXPECT_EQ(readable_bytes(1536), "1.5 KiB");
  EXPECT_EQ(readable_bytes(12), "12 B");
  EXPECT_EQ(counted(1, "trial"), "1 trial");
  EXPECT_EQ(counted(1200, "trial"), "1,200 trials");
  EXPECT_EQ(joined({"a", "b"}), "a, b");
  EXPECT_EQ(with_digits(0.123456, 3), "0.123");
  EXPECT_EQ(with_digits(1e6), "1e+06");
}

}  // namespace
}  // namespace ringtrain
