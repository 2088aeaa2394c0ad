#include "run/metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "run/progress_display.h"
#include "tests/unit/repository.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

class RecorderTest : public testing::Test {
 protected:
  RecorderTest() {
    std::string name = (fs::temp_directory_path() / "ringtrain-recorder-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw Error("mkdtemp");
    folder_ = name;
    testing::internal::CaptureStdout();
  }
  ~RecorderTest() override {
    const std::string text = testing::internal::GetCapturedStdout();
    if (HasFailure()) std::cout << text;  // GoogleTest's own messages were captured, too
    fs::remove_all(folder_);
  }
  // Returns the output that the user has seen since the last call.
  std::string output() {
    std::string text = testing::internal::GetCapturedStdout();
    testing::internal::CaptureStdout();
    return text;
  }
  std::string file() const { return folder_ + "/metrics.jsonl"; }
  std::string content() const {
    std::ifstream in(file());
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::vector<nlohmann::json> records() const {
    std::vector<nlohmann::json> all;
    std::ifstream in(file());
    for (std::string line; std::getline(in, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }
  // Returns the steps in the file, as "1 2 2v 3", where v marks an evaluation.
  std::string steps() const {
    std::string text;
    for (const nlohmann::json& record : records()) {
      text += cat(text.empty() ? "" : " ", record["step"].get<std::int64_t>());
      if (record.contains("validation_loss")) text += "v";
    }
    return text;
  }
  std::string folder_;
};

StepReport at(std::int64_t step) {
  StepReport report;
  report.position.step = step;
  report.position.samples = step * 32;
  report.samples = 32;
  report.loss = 3.0 / static_cast<double>(step);
  report.learning_rate = 0.001;
  report.gradient_norm = 0.5;
  report.run.epoch = static_cast<double>(step) / 4;
  report.run.seconds = 0.5;
  return report;
}

TEST_F(RecorderTest, StepRecordsHaveTheAgreedKeysAndNoOthers) {
  Recorder(folder_, 0, 10, 1).step(at(1));
  ASSERT_EQ(records().size(), 1u);
  std::vector<std::string> keys;
  const nlohmann::json record = records()[0];
  for (const auto& [key, value] : record.items()) keys.push_back(key);
  EXPECT_EQ(keys,
            (std::vector<std::string>{"accuracy", "backward_seconds", "communication_seconds", "elapsed_seconds",
                                      "epoch", "forward_seconds", "global_batch", "grad_norm", "input_seconds", "loss",
                                      "lr", "samples", "samples_per_second", "seconds", "step", "update_seconds"}));
}

// Returns the keys that results/README.md explains for an update. They stand in the first column of two tables.
std::set<std::string> keys_on_the_page() {
  std::ifstream in(repository() / "results" / "README.md");
  std::set<std::string> keys;
  bool explains_updates = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("|---")) continue;
    if (line.empty() || line.front() != '|') {
      explains_updates = false;
    } else if (line.starts_with("| field of an update |") || line.starts_with("| field of such an update |")) {
      explains_updates = true;
    } else if (explains_updates) {
      const std::vector<std::string> parts = split(line.substr(0, line.find('|', 1)), '`');
      for (std::size_t i = 1; i < parts.size(); i += 2) keys.insert(parts[i]);
    }
  }
  return keys;
}

TEST(StepFields, ThePageExplainsEachOfThemAndNoOthers) {
  std::set<std::string> keys;
  for (const StepField& field : step_fields()) keys.insert(field.key);
  EXPECT_EQ(keys_on_the_page(), keys);
}

TEST_F(RecorderTest, AKnownBoundGivesItsShareAndAnUnknownOneGivesNone) {
  Recorder recorder(folder_, 0, 10, 1);
  recorder.step(at(1));
  StepReport record = at(2);
  record.run.share_of_bound = 0.41;
  recorder.step(record);
  EXPECT_FALSE(records()[0].contains("share_of_bound"));
  EXPECT_EQ(records()[1]["share_of_bound"], 0.41);
}

TEST_F(RecorderTest, StagesServersAndSeveralRanksHaveFieldsOfTheirOwn) {
  Recorder recorder(folder_, 0, 10, 1);
  StepReport record = at(1);
  record.times = {.input = 1, .forward = 2, .backward = 3, .bubble = 4, .boundary = 5, .communication = 6, .update = 7};
  record.run.is_stage = true;
  record.run.sent = SentBytes{12, 34};
  recorder.step(record);
  record = at(2);
  record.times = {.communication = 6, .update = 7, .workers = 5};
  record.run.is_async = true;
  record.served =
      TakenGradients{.sums = {.losses = {}, .times = {.input = 8, .forward = 9, .backward = 10, .server = 11}},
                     .last = {.worker = 2, .staleness = 3},
                     .count = 1};
  recorder.step(record);
  record.run.is_async = false;
  record.served->count = 4;
  record.served->dropped = 1;
  recorder.step(record);
  const std::vector<nlohmann::json> written = records();
  EXPECT_EQ(written[0]["bubble_seconds"], 4);
  EXPECT_EQ(written[0]["boundary_seconds"], 5);
  EXPECT_EQ(written[0]["sent_bytes"], 12);
  EXPECT_EQ(written[0]["shared_bytes"], 34);
  EXPECT_FALSE(written[1].contains("bubble_seconds"));
  EXPECT_EQ(written[1]["worker"], 2);
  EXPECT_EQ(written[1]["staleness"], 3);
  EXPECT_EQ(written[1]["forward_seconds"], 0) << "of server 0";
  EXPECT_EQ(written[1]["worker_wait_seconds"], 5);
  EXPECT_EQ(written[1]["worker_input_seconds"], 8);
  EXPECT_EQ(written[1]["worker_forward_seconds"], 9);
  EXPECT_EQ(written[1]["worker_backward_seconds"], 10);
  EXPECT_EQ(written[1]["server_wait_seconds"], 11);
  EXPECT_EQ(written[2]["gradients"], 4);
  EXPECT_EQ(written[2]["worker_input_seconds"], 2) << "the mean over the gradients";
  EXPECT_EQ(written[2]["dropped"], 1);
  EXPECT_FALSE(written[2].contains("worker"));
}

TEST_F(RecorderTest, TheNoiseScaleIsWrittenWithTheStepsThatMeasuredIt) {
  Recorder recorder(folder_, 0, 10, 1);
  recorder.step(at(1));
  StepReport record = at(2);
  record.samples = 48;
  record.noise = NoiseReport{.estimate = {300, -2},
                             .scale = {.value = 150, .low = 120, .high = std::nullopt},
                             .targets_per_sample = 8,
                             .is_text = true,
                             .change = "rate"};
  recorder.step(record);
  record.noise = NoiseReport{.estimate = {300, 2},
                             .scale = {.value = 150, .low = 120, .high = 180},
                             .change = "",
                             .groups = {{"weight", 140.5}, {"bias", NAN}}};
  recorder.step(record);
  const std::vector<nlohmann::json> written = records();
  EXPECT_FALSE(written[0].contains("noise_scale"));
  EXPECT_EQ(written[1]["global_batch"], 48);
  EXPECT_EQ(written[1]["noise_trace"], 300);
  EXPECT_EQ(written[1]["noise_gradient"], -2) << "raw";
  EXPECT_EQ(written[1]["noise_scale"], 150);
  EXPECT_EQ(written[1]["noise_scale_low"], 120);
  EXPECT_TRUE(written[1]["noise_scale_high"].is_null()) << "unbounded";
  EXPECT_EQ(written[1]["noise_scale_characters"], 1200);
  EXPECT_EQ(written[1]["noise_change"], "rate");
  EXPECT_EQ(written[2]["noise_scale_high"], 180);
  EXPECT_FALSE(written[2].contains("noise_scale_characters")) << "of images";
  EXPECT_FALSE(written[2].contains("noise_change"));
  EXPECT_FALSE(written[1].contains("noise_groups"));
  EXPECT_EQ(written[2]["noise_groups"]["weight"], 140.5);
  EXPECT_TRUE(written[2]["noise_groups"]["bias"].is_null());
}

TEST_F(RecorderTest, AdaScalesGainAndEpochAreWrittenWhereItIsOn) {
  Recorder recorder(folder_, 0, 10, 1);
  recorder.step(at(1));
  StepReport record = at(2);
  record.gain = 3.5;
  record.run.scale_invariant_epoch = 1.25;
  recorder.step(record);
  record.gain = std::nullopt;
  recorder.step(record);
  const std::vector<nlohmann::json> written = records();
  EXPECT_FALSE(written[0].contains("gain") || written[0].contains("scale_invariant_epoch"));
  EXPECT_EQ(written[1]["gain"], 3.5);
  EXPECT_EQ(written[1]["scale_invariant_epoch"], 1.25);
  EXPECT_TRUE(written[2]["gain"].is_null()) << "skipped";
}

TEST_F(RecorderTest, EvaluationsAreObjectsOfTheirOwn) {
  Recorder recorder(folder_, 0, 10, 1);
  recorder.step(at(4));
  recorder.evaluation({.position = {.step = 4, .samples = 128},
                       .epoch = 1,
                       .result = {.loss = 1.5, .accuracy = 0.25, .accuracy5 = 0.75, .targets = 800, .seconds = 0.1},
                       .best = true});
  EXPECT_EQ(records()[1], (nlohmann::json{{"step", 4},
                                          {"epoch", 1},
                                          {"samples", 128},
                                          {"validation_loss", 1.5},
                                          {"validation_accuracy", 0.25},
                                          {"validation_accuracy5", 0.75},
                                          {"validation_targets", 800},
                                          {"evaluation_seconds", 0.1},
                                          {"best", true}}));
  EXPECT_NE(output().find("validation loss 1.5000  accuracy 25.00 %, top-5 75.00 %"), std::string::npos);
}

TEST_F(RecorderTest, EvaluationsOfTextHaveNoTopFive) {
  Recorder recorder(folder_, 0, 10, 1);
  recorder.evaluation({.position = {.step = 4}, .result = {.loss = 1.5, .accuracy = 0.25, .targets = 800}});
  EXPECT_FALSE(records()[0].contains("validation_accuracy5"));
  EXPECT_EQ(output().find("top-5"), std::string::npos);
  recorder.evaluation(
      {.position = {.step = 5}, .result = {.accuracy5 = 0.0, .targets = 800}});  // images, all of them wrong
  EXPECT_EQ(records()[1]["validation_accuracy5"], 0);
  EXPECT_NE(output().find("top-5 0.00 %"), std::string::npos);
}

TEST_F(RecorderTest, LastAccuraciesAreThoseOfTheLastFiveEvaluationsARunResumedIncluded) {
  {
    Recorder recorder(folder_, 0, 100, 1);
    for (int i = 1; i <= 4; ++i) {
      recorder.step(at(10 * i));
      recorder.evaluation({.position = {.step = 10 * i}, .result = {.accuracy = 0.1 * i}});
    }
  }
  Recorder resumed(folder_, 30, 100, 1);  // cuts the fourth record away
  EXPECT_EQ(resumed.last_accuracies(), (std::vector<double>{0.1, 0.1 * 2, 0.1 * 3}));
  for (int i = 4; i <= 7; ++i) resumed.evaluation({.position = {.step = 10 * i}, .result = {.accuracy = 0.5}});
  EXPECT_EQ(resumed.last_accuracies(), (std::vector<double>{0.1 * 3, 0.5, 0.5, 0.5, 0.5}));
}

TEST_F(RecorderTest, ValuesReadBackExactly) {
  const std::vector<double> values = {0.1,
                                      1.0 / 3,
                                      1e-300,
                                      std::numeric_limits<double>::denorm_min(),
                                      -0.0,
                                      1e300,
                                      2.5e-17,
                                      123456789.123456789,
                                      1 + 1e-15,
                                      3,
                                      std::numeric_limits<double>::max()};
  {
    Recorder recorder(folder_, 0, 0, 1000);
    for (std::size_t i = 0; i < values.size(); ++i) {
      StepReport record = at(static_cast<std::int64_t>(i) + 1);
      record.loss = values[i];
      record.position.samples = (std::int64_t{1} << 60) + static_cast<std::int64_t>(i);
      recorder.step(record);
    }
  }
  const std::vector<nlohmann::json> found = records();
  ASSERT_EQ(found.size(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(found[i]["loss"].get<double>(), values[i]);
    EXPECT_EQ(found[i]["samples"].get<std::int64_t>(), (std::int64_t{1} << 60) + static_cast<std::int64_t>(i));
  }
}

TEST_F(RecorderTest, NumbersThatAreNotFiniteStayValidJson) {
  Recorder recorder(folder_, 0, 0, 1000);
  StepReport record = at(1);
  record.loss = std::numeric_limits<double>::quiet_NaN();
  record.gradient_norm = -std::numeric_limits<double>::infinity();
  recorder.step(record);
  EXPECT_TRUE(records()[0]["loss"].is_null());
  EXPECT_TRUE(records()[0]["grad_norm"].is_null());
}

TEST_F(RecorderTest, EveryRecordIsInTheFileAtOnce) {
  Recorder recorder(folder_, 0, 10, 1);
  for (std::int64_t step = 1; step <= 3; ++step) {
    recorder.step(at(step));
    EXPECT_EQ(records().size(), static_cast<std::size_t>(step));
  }
  recorder.flush();
}

// ---- Resuming -----------------------------------------------------------------------------------------------------

void fill(const std::string& folder, std::int64_t last) {
  Recorder recorder(folder, 0, 0, 1000000);
  for (std::int64_t step = 1; step <= last; ++step) {
    recorder.step(at(step));
    if (step % 2 == 0) recorder.evaluation({.position = {.step = step}});
  }
}

TEST_F(RecorderTest, ResumingCutsBackToTheCheckpointEvaluationsIncluded) {
  fill(folder_, 6);
  Recorder recorder(folder_, 4, 0, 1);
  EXPECT_EQ(steps(), "1 2 2v 3 4 4v");
  recorder.step(at(5));
  EXPECT_EQ(steps(), "1 2 2v 3 4 4v 5");
}

TEST_F(RecorderTest, ResumingKeepsAllBytesWhenNothingIsToBeCut) {
  fill(folder_, 6);
  const std::string before = content();
  { Recorder recorder(folder_, 6, 0, 1); }
  EXPECT_EQ(content(), before);
  { Recorder recorder(folder_, 100, 0, 1); }
  EXPECT_EQ(content(), before);
}

TEST_F(RecorderTest, ResumingFromTheStartEmptiesTheFile) {
  fill(folder_, 3);
  { Recorder recorder(folder_, 0, 0, 1); }
  EXPECT_EQ(content(), "");
}

TEST_F(RecorderTest, LaterRecordsThatMayNotComeBackAreKeptUnderAnotherName) {
  const auto content_of = [this](const std::string& name) {
    std::ifstream in(folder_ + "/" + name);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  fill(folder_, 6);
  const std::string before = content();
  std::ofstream(file(), std::ios::app) << "{\"step\": 7, \"lo";  // a killed run leaves such a line
  { Recorder recorder(folder_, 4, 0, 1, LaterRecords::keep); }
  EXPECT_EQ(steps(), "1 2 2v 3 4 4v");
  EXPECT_EQ(content() + content_of("metrics-steps-5-to-6.jsonl"), before);
  expect_contains(output(), folder_ + "/metrics-steps-5-to-6.jsonl");

  std::ofstream(file()) << before;  // the same steps again
  { Recorder recorder(folder_, 4, 0, 1, LaterRecords::keep); }
  EXPECT_EQ(content() + content_of("metrics-steps-5-to-6-2.jsonl"), before);

  std::ofstream(file()) << before;
  { Recorder recorder(folder_, 0, 0, 1, LaterRecords::keep); }
  EXPECT_EQ(content(), "");
  EXPECT_EQ(content_of("metrics-steps-1-to-6.jsonl"), before);
  { Recorder recorder(folder_, 0, 0, 1, LaterRecords::keep); }  // no records to keep, so no file
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 4);
}

TEST_F(RecorderTest, ABrokenLastLineGoesWhereverItWasCut) {
  fill(folder_, 3);
  const std::string whole = content();
  const std::size_t last = whole.rfind('\n', whole.size() - 2) + 1;
  for (std::size_t cut = last + 1; cut < whole.size(); cut += 7) {
    std::ofstream(file()) << whole.substr(0, cut);
    { Recorder recorder(folder_, 3, 0, 1); }
    EXPECT_EQ(content(), whole.substr(0, last)) << "cut at " << cut;
  }
  std::ofstream(file()) << whole.substr(0, whole.size() - 1);  // all but the newline
  { Recorder recorder(folder_, 3, 0, 1); }
  EXPECT_EQ(content(), whole.substr(0, last));
}

TEST_F(RecorderTest, RubbishInsideTheFileGoes) {
  fill(folder_, 2);
  const std::string whole = content();
  std::ofstream(file()) << whole << std::string(100, '\0')
                        << "\n[1, 2]\n{\"loss\": 1}\n{\"step\": x}\n\n{\"step\": 1, \"lo\n";
  { Recorder recorder(folder_, 2, 0, 1); }
  EXPECT_EQ(content(), whole);
  EXPECT_FALSE(fs::exists(file() + ".tmp"));
}

TEST_F(RecorderTest, AKillAtAnyMomentBreaksAtMostTheLastLine) {
  for (int kill = 0; kill < 10; ++kill) {
    fs::remove(file());
    const pid_t child = ::fork();
    if (child == 0) {
      Recorder recorder(folder_, 0, 0, 1 << 30);
      for (std::int64_t step = 1;; ++step) recorder.step(at(step));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + 3 * kill));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    { Recorder recorder(folder_, 1 << 30, 0, 1); }
    std::int64_t expected = 1;
    for (const nlohmann::json& record : records()) ASSERT_EQ(record["step"], expected++);
  }
}

TEST_F(RecorderTest, AFolderThatIsNotThereIsNamed) {
  try {
    Recorder(folder_ + "/none", 0, 0, 1);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(folder_ + "/none/metrics.jsonl: "), std::string::npos) << error.what();
  }
}

TEST_F(RecorderTest, AFileThatIsRemovedReplacedOrMovedIsAnError) {
  const auto lost_after = [&](const std::function<void()>& change) {
    Recorder recorder(folder_, 0, 0, 1);
    recorder.step(at(1));
    EXPECT_FALSE(recorder.is_lost());
    recorder.require_file();
    change();
    EXPECT_TRUE(recorder.is_lost());
    EXPECT_THROW(recorder.require_file(), Error);
  };
  lost_after([&] { fs::remove(file()); });
  lost_after([&] { fs::rename(file(), file() + ".old"); });
  lost_after([&] {
    fs::copy_file(file(), file() + ".copy");
    fs::rename(file() + ".copy", file());
  });
}

TEST_F(RecorderTest, RecordsThatAreMissingBeforeAResumeAreNamed) {
  EXPECT_EQ(recorded_steps(folder_, 0, 10, 0).missing, "steps 1 to 10");
  EXPECT_EQ(recorded_steps(folder_, 6, 10, 8).missing, "steps 7 to 10, the evaluation after step 8");
  EXPECT_EQ(recorded_steps(folder_, 10, 10, 10).missing, "");
  {
    Recorder recorder(folder_, 0, 0, 1);
    for (const std::int64_t step : {1, 2, 3, 5, 6, 9}) recorder.step(at(step));
    recorder.evaluation({.position = {.step = 9}, .epoch = 1, .result = {}, .best = false});
    recorder.step(at(12));
  }
  EXPECT_EQ(recorded_steps(folder_, 0, 3, 0).missing, "");
  EXPECT_EQ(recorded_steps(folder_, 0, 9, 9).missing, "step 4, steps 7 to 8");
  EXPECT_EQ(recorded_steps(folder_, 0, 9, 9).last, 12);
  EXPECT_EQ(recorded_steps(folder_, 4, 11, 6).missing, "steps 7 to 8, steps 10 to 11, the evaluation after step 6");
  std::ofstream(file()) << "{\"step\": 1, \"loss\": 2}\n{\"step\": 2, \"loss\": 2}";  // the last line is cut off
  EXPECT_EQ(recorded_steps(folder_, 0, 2, 0).missing, "step 2");
  EXPECT_EQ(recorded_steps(folder_, 0, 2, 0).last, 1);
}

// ---- What the user sees ---------------------------------------------------------------------------------------------

TEST_F(RecorderTest, ABatchLogGetsTheFirstTheLastAndEveryNthStep) {
  {
    Recorder recorder(folder_, 0, 25, 10);
    for (std::int64_t step = 1; step <= 25; ++step) recorder.step(at(step));
    recorder.note("a note");
  }
  const std::string text = output();
  std::string seen;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) seen += line.substr(0, line.find("  ")) + ";";
  EXPECT_EQ(seen, "step 1/25;step 10/25;step 20/25;step 25/25;a note;");
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_NE(text.find("step 10/25  epoch 2.50  loss 0.3000  lr 0.001  grad norm 0.5  64 samples/s  ETA 8s"),
            std::string::npos)
      << text;
}

TEST_F(RecorderTest, ARunThatStopsEarlyShowsItsLastStep) {
  {
    Recorder recorder(folder_, 0, 0, 10);
    for (std::int64_t step = 1; step <= 13; ++step) recorder.step(at(step));
  }
  EXPECT_NE(output().find("step 13  "), std::string::npos);
}

TEST_F(RecorderTest, FinishShowsTheLastStepOnceAndBeforeTheClosingWords) {
  {
    Recorder recorder(folder_, 0, 0, 10);
    for (std::int64_t step = 1; step <= 3; ++step) recorder.step(at(step));
    recorder.finish();
    log_info("the end");
  }
  const std::string text = output();
  const std::size_t last = text.find("step 3  ");
  ASSERT_NE(last, std::string::npos);
  EXPECT_EQ(text.find("step 3  ", last + 1), std::string::npos);
  EXPECT_LT(last, text.find("the end"));
}

// Runs `action` in a child process whose stdout is a terminal of 80 columns. Returns everything that it wrote there.
std::string seen_on_terminal(const std::function<void()>& action) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0) return "no pseudo-terminal";
  const int screen_side = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY);
  const winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  ::ioctl(screen_side, TIOCSWINSZ, &size);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(screen_side, STDOUT_FILENO);
    ::setenv("TERM", "xterm", 1);
    action();
    std::fflush(stdout);
    ::_exit(0);
  }
  ::close(screen_side);
  std::string text;
  char bytes[4096];
  for (ssize_t count; (count = ::read(terminal, bytes, sizeof bytes)) > 0;) {
    text.append(bytes, static_cast<std::size_t>(count));
  }
  ::close(terminal);
  ::waitpid(child, nullptr, 0);
  return text;
}

// Returns the lines that stay on the screen after carriage returns and "erase the line" are applied.
std::vector<std::string> screen(const std::string& text) {
  std::vector<std::string> lines(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 4, "\r\033[K") == 0) {
      lines.back().clear();
      i += 3;
    } else if (text[i] == '\n') {
      lines.emplace_back();
    } else if (text[i] != '\r') {
      lines.back() += text[i];
    }
  }
  return lines;
}

TEST_F(RecorderTest, OnATerminalNotesAndLogLinesStandAboveTheBar) {
  const std::string text = seen_on_terminal([&] {
    Recorder recorder(folder_, 0, 4, 1);
    recorder.step(at(1));
    recorder.note("a note");
    recorder.step(at(2));
    log_info("a log line");
    recorder.step(at(3));
    recorder.step(at(4));
    recorder.finish();
    log_info("the end");
  });
  const std::vector<std::string> lines = screen(text);
  ASSERT_EQ(lines.size(), 5u) << text;
  EXPECT_EQ(lines[0], "a note");
  EXPECT_EQ(lines[1], "a log line");
  EXPECT_EQ(lines[2].substr(0, 12), "step 4/4 [==");
  EXPECT_EQ(lines[3], "the end");
  EXPECT_LT(lines[2].size(), 80u);
}

TEST_F(RecorderTest, ALineOfABatchLogHasTheRateOfTheStepsSinceTheLineBefore) {
  Recorder recorder(folder_, 0, 9, 3);
  for (std::int64_t step = 1; step <= 9; ++step) {
    StepReport record = at(step);
    record.run.seconds = step <= 3 ? 0.5 : step <= 6 ? 0.25 : 0.1;
    recorder.step(record);
  }
  const std::string text = output();
  for (const char* rate : {"  64 samples/s", "  128 samples/s", "  320 samples/s"})
    EXPECT_NE(text.find(rate), std::string::npos) << rate << "\n" << text;
}

TEST_F(RecorderTest, ALineOfABatchLogHasTheShareOfTheBoundSinceTheLineBefore) {
  Recorder recorder(folder_, 0, 6, 2);
  for (std::int64_t step = 1; step <= 6; ++step) {
    StepReport record = at(step);
    record.run.seconds = step % 2 == 0 ? 3 : 1;
    record.run.share_of_bound = step <= 2 ? 0.1 : step % 2 == 0 ? 0.5 : 0.1;  // (0.1 x 1 s + 0.5 x 3 s) / 4 s = 0.4
    if (step > 4) record.run.share_of_bound = 0.0123;
    recorder.step(record);
  }
  const std::string text = output();
  for (const char* share : {"/s  10 % of bound  ETA", "/s  40 % of bound  ETA", "/s  1.2 % of bound  ETA"})
    EXPECT_NE(text.find(share), std::string::npos) << share << "\n" << text;
}

TEST_F(RecorderTest, TheBarIsDrawnAtMostFiveTimesASecond) {
  const std::string text = seen_on_terminal([&] {
    Recorder recorder(folder_, 0, 100000, 1);
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
    for (std::int64_t step = 1; std::chrono::steady_clock::now() < end; ++step) recorder.step(at(step));
  });
  int drawings = 0;
  for (std::size_t i = text.find("\033[K"); i != std::string::npos; i = text.find("\033[K", i + 1)) ++drawings;
  EXPECT_GE(drawings, 2);
  EXPECT_LE(drawings, 5) << "the first, two in half a second, and the last";
}

TEST(Progress, TheBarFitsAnyTerminal) {
  SmoothedRate rate;
  rate.add(32, 0.5);
  for (int width = 1; width < 150; ++width) {
    EXPECT_LT(progress_bar(at(5), 20, rate, width).size(), static_cast<std::size_t>(std::max(width, 2))) << width;
  }
  EXPECT_EQ(progress_bar(at(5), 20, rate, 80),
            "step 5/20 [========>                       ]  64 samples/s  loss 0.6000  ETA 8s");
  EXPECT_EQ(progress_bar(at(20), 20, rate, 75).find('>'), std::string::npos) << "full at the end";
  EXPECT_EQ(progress_bar(at(5), 0, rate, 80), "step 5  64 samples/s  loss 0.6000") << "no known end: no bar, no ETA";
  SmoothedRate with_bound;
  with_bound.add(32, 0.5, 0.2);
  EXPECT_EQ(progress_bar(at(5), 0, with_bound, 80), "step 5  64 samples/s  40 % of bound  loss 0.6000");
  SmoothedRate too_fast;
  too_fast.add(32, 0.5, 0.6);
  EXPECT_EQ(progress_bar(at(5), 0, too_fast, 80), "step 5  64 samples/s  over 100 % of bound  loss 0.6000");
}

TEST(Progress, RatesForgetThePast) {
  SmoothedRate rate;
  for (int i = 0; i < 100; ++i) rate.add(10, 1);
  EXPECT_NEAR(rate.samples_per_second(), 10, 1e-9);
  for (int i = 0; i < 100; ++i) rate.add(100, 1);
  EXPECT_NEAR(rate.samples_per_second(), 100, 0.01);
  EXPECT_NEAR(rate.seconds_per_step(), 1, 1e-9);
}

TEST(Progress, DurationsAreReadable) {
  EXPECT_EQ(readable_duration(59.4), "59s");
  EXPECT_EQ(readable_duration(192), "3:12");
  EXPECT_EQ(readable_duration(3723), "1:02:03");
  EXPECT_EQ(readable_duration(100000), "1d 03:46");
  EXPECT_EQ(readable_duration(std::numeric_limits<double>::quiet_NaN()), "unknown");
}

}  // namespace
}  // namespace ringtrain
