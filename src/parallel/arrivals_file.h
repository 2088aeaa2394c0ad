// arrivals.csv in the folder of an asynchronous run. Its lines are in the order in which the updates were applied. They
// say which worker computed each update, and from which version of the weights. parallel.replay takes such a file. A
// file that somebody wrote by hand may lack the last column, which says how many samples the run had applied.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace ringtrain {

// One line of arrivals.csv.
struct Arrival {
  std::int64_t step = 0;     // number of updates in the weights, including this one
  std::int64_t update = 0;   // the update of the run's order whose samples it has taken
  std::int64_t worker = 0;   // from 0
  std::int64_t version = 0;  // number of updates in the weights from which it was computed
  std::int64_t samples = 0;  // samples that the run had applied after it; 0: not recorded
  std::int64_t staleness() const { return step - 1 - version; }
  bool operator==(const Arrival&) const = default;
};

// Reads the arrivals of the steps after `after_step`. Throws Error if the file cannot be read or has another form. The
// message begins with `name`, or with the path if there is no name.
std::vector<Arrival> read_arrivals(const std::string& path, std::int64_t after_step, const std::string& name = "");

// Returns the name of a recorded order in messages.
inline std::string replay_name(const std::string& path) {
  return "parallel.replay: " + path;
}
// What to do if a recorded order does not fit the run.
inline constexpr const char* replay_hint =
    "give the arrivals.csv of a run of the same experiment on as many workers, with the same evaluations and "
    "checkpoints";

// Returns the number of updates for each staleness.
std::map<std::int64_t, std::int64_t> staleness_histogram(const std::vector<Arrival>& arrivals);

class ArrivalsFile {
 public:
  // Appends to the file in this folder, or begins it if `after_step` is 0 or there is none. First removes its lines for
  // steps after `after_step`, and a damaged line with all lines after it. Warns if a line is damaged, or if an
  // update from step `first_step` + 1 to `after_step` is not there. Throws Error if the file cannot be written.
  ArrivalsFile(const std::string& run_dir, std::int64_t first_step, std::int64_t after_step);
  void add(const Arrival& arrival);
  void sync() const;  // called with each checkpoint; throws Error
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace ringtrain
