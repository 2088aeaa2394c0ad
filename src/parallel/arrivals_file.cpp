#include "parallel/arrivals_file.h"

#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"

namespace ringtrain {
namespace {

constexpr const char* header = "step,update,worker,version,staleness";

std::string line_of(const Arrival& a) {
  return cat(a.step, ",", a.update, ",", a.worker, ",", a.version, ",", a.staleness(), "\n");
}

}  // namespace

std::vector<Arrival> read_arrivals(const std::string& path, std::int64_t after_step) {
  std::ifstream in(path);
  std::string line;
  const char* const hint = "give the arrivals.csv of an asynchronous run's folder";
  if (!in || !std::getline(in, line)) throw Error(cat(path, ": cannot be read as an order of arrival"), hint);
  if (line != header) throw Error(cat(path, " begins with '", line, "', expected '", header, "'"), hint);
  std::vector<Arrival> arrivals;
  for (std::int64_t number = 2; std::getline(in, line); ++number) {
    if (in.eof()) break;  // the mark of a kill: a line without its end
    long long step = 0, update = 0, worker = 0, version = 0, staleness = 0;
    int end = 0;
    if (std::sscanf(line.c_str(), "%lld,%lld,%lld,%lld,%lld%n", &step, &update, &worker, &version, &staleness, &end) !=
            5 ||
        static_cast<std::size_t>(end) != line.size() || staleness != step - 1 - version)
      throw Error(cat(path, ", line ", number, " is '", line, "', expected five whole numbers: ", header), hint);
    if (step > after_step) arrivals.push_back({step, update, worker, version});
  }
  return arrivals;
}

std::map<std::int64_t, std::int64_t> staleness_histogram(const std::vector<Arrival>& arrivals) {
  std::map<std::int64_t, std::int64_t> updates;
  for (const Arrival& a : arrivals) ++updates[a.staleness()];
  return updates;
}

ArrivalsFile::ArrivalsFile(const std::string& run_dir, std::int64_t after_step) : path_(run_dir + "/arrivals.csv") {
  std::string text = cat(header, "\n");
  if (after_step > 0 && std::filesystem::exists(path_))
    for (const Arrival& a : read_arrivals(path_, 0))
      if (a.step <= after_step) text += line_of(a);
  write_file_atomically(path_, text);
  file_.open(path_, std::ios::app);
}

void ArrivalsFile::add(const Arrival& arrival) {
  file_ << line_of(arrival) << std::flush;
  if (!file_) throw Error(cat(path_, ": cannot be written"), "make room on the disk, then --resume");
}

}  // namespace ringtrain
