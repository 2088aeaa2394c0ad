// Reads the files of a run's folder other than checkpoints. The first byte says which file: arrivals.csv, run.json,
// metrics.jsonl, trial.json, a search's decision, or the text of an option.
#include <filesystem>

#include "base/error.h"
#include "bench/forecast.h"
#include "config/batch_course.h"
#include "parallel/arrivals_file.h"
#include "run/folder.h"
#include "run/metrics.h"
#include "run/run_record.h"
#include "study/search_course.h"
#include "study/trial_plan.h"
#include "study/trial_record.h"
#include "tests/fuzz/target.h"

namespace ringtrain::fuzz {
namespace {

void read_options(const std::string& text) {
  error_of([&] { parse_ranks(text); });
  lock_owner_is_gone(text);
  parse_run_and_point(text);
  const auto point = parse_run_point(text);
  if (!point) return;
  const auto again = parse_run_point(to_string(*point));
  expect(again && again->at == point->at && again->in_steps == point->in_steps, "a place in a run reads back the same");
}

void read(std::string_view input) {
  const int which = input.empty() ? 0 : static_cast<unsigned char>(input[0]) % 6;
  const std::string_view text = input.empty() ? input : input.substr(1);
  const std::string folder = in_folder("run");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  if (which == 0) {
    const std::string path = write_input("run/arrivals.csv", text);
    read_arrivals(path, 0);
    ArrivalsFile(folder, 0, 1).add({.step = 2});
  } else if (which == 1) {
    write_input("run/run.json", text);
    recorded_stop_cost(folder);
    read_outcome(folder);
    measured_runs(in_folder(""));
    record_stop_cost(folder, {});
    record_start(folder, {});
    record_end(folder, {});
  } else if (which == 2) {
    write_input("run/metrics.jsonl", text);
    recorded_steps(folder, 0, 4, 2);
    read_outcome(folder);
  } else if (which == 3) {
    write_input("run/trial.json", text);
    TrialRecord record;
    if (!read_trial_record(folder, record)) return;
    TrialRecord again;
    write_input("run/trial.json", to_json(record));
    expect(read_trial_record(folder, again), "a trial's record is read again");
  } else if (which == 4) {
    write_input("run/rung-1.json", text);
    TrialSearch search;
    search.points = {"a", "b"};
    search.rungs = {{2, 100}, {1, 200}};
    SearchCourse course(search, folder);
    course.update(std::vector<TrialStanding>(2));
  } else {
    read_options(std::string(text));
  }
}

const Registered registered("run_files", read);

}  // namespace
}  // namespace ringtrain::fuzz
