#include "parallel/arrivals_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/text.h"
#include "base/utf8.h"

namespace ringtrain {
namespace {

constexpr const char* header = "step,update,worker,version,staleness,samples";
constexpr const char* header_without_samples = "step,update,worker,version,staleness";

std::string line_of(const Arrival& a) {
  return cat(a.step, ",", a.update, ",", a.worker, ",", a.version, ",", a.staleness(), ",", a.samples, "\n");
}

// Returns nothing if the line has another form or its numbers contradict each other.
std::optional<Arrival> arrival_of(const std::string& line, std::size_t columns) {
  const std::vector<std::string> fields = split(line, ',');
  if (fields.size() != columns) return std::nullopt;
  std::array<std::int64_t, 6> numbers{};
  for (std::size_t i = 0; i < columns; ++i)
    if (!read_number(fields[i], numbers[i]) || numbers[i] < 0) return std::nullopt;
  const Arrival arrival{numbers[0], numbers[1], numbers[2], numbers[3], numbers[5]};
  if (numbers[4] != arrival.staleness()) return std::nullopt;
  return arrival;
}

// Appends the arrivals to `arrivals`. If a line is damaged, those before it are there when this function throws Error.
void read_lines(const std::string& path, const std::string& name, std::vector<Arrival>& arrivals) {
  std::ifstream in(path);
  std::string line;
  const char* const hint = "give the arrivals.csv of an asynchronous run's folder";
  if (!in || !std::getline(in, line)) throw Error(cat(name, ": cannot be read as an order of arrival"), hint);
  const bool has_samples = line == header;
  if (!has_samples && line != header_without_samples)
    throw Error(cat(name, " begins with ", shown(line), ", expected '", header, "'"), hint);
  for (std::int64_t number = 2; std::getline(in, line); ++number) {
    if (in.eof()) break;  // a kill has cut the line off
    const auto arrival = arrival_of(line, has_samples ? 6 : 5);
    if (!arrival)
      throw Error(cat(name, ", line ", number, " is ", shown(line), ", expected ", has_samples ? "six" : "five",
                      " whole numbers: ", has_samples ? header : header_without_samples,
                      ", where staleness is step - 1 - version"),
                  hint);
    arrivals.push_back(*arrival);
  }
}

}  // namespace

std::vector<Arrival> read_arrivals(const std::string& path, std::int64_t after_step, const std::string& name) {
  std::vector<Arrival> arrivals;
  read_lines(path, name.empty() ? path : name, arrivals);
  std::erase_if(arrivals, [&](const Arrival& a) { return a.step <= after_step; });
  return arrivals;
}

std::map<std::int64_t, std::int64_t> staleness_histogram(const std::vector<Arrival>& arrivals) {
  std::map<std::int64_t, std::int64_t> updates;
  for (const Arrival& a : arrivals) ++updates[a.staleness()];
  return updates;
}

ArrivalsFile::ArrivalsFile(const std::string& run_dir, std::int64_t first_step, std::int64_t after_step)
    : path_(run_dir + "/arrivals.csv") {
  std::string text = cat(header, "\n");
  std::vector<Arrival> arrivals;
  try {
    if (after_step > 0 && std::filesystem::exists(path_)) read_lines(path_, path_, arrivals);
  } catch (const Error& error) {  // a node that lost its power may leave a damaged end
    log_warning(error.what(), "; this line and all lines after it are removed");
  }
  std::erase_if(arrivals, [&](const Arrival& a) { return a.step > after_step; });
  std::int64_t next = first_step + 1;  // the first update that is not there
  for (const Arrival& a : arrivals) {
    text += line_of(a);
    if (a.step == next) ++next;
  }
  if (next <= after_step) {
    const auto later = std::ranges::find_if(arrivals, [&](const Arrival& a) { return a.step > next; });
    log_warning(path_, " lacks the updates from step ", next, " to ",
                later == arrivals.end() ? after_step : later->step - 1, ": parallel.replay cannot repeat this run");
  }
  write_file_atomically(path_, text);
  file_.open(path_, std::ios::app);
}

void ArrivalsFile::add(const Arrival& arrival) {
  file_ << line_of(arrival) << std::flush;
  if (!file_) throw Error(cat(path_, ": cannot be written"), "make room on the disk, then --resume");
}

void ArrivalsFile::sync() const {
  const int file = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  const int reason = file < 0 ? errno : sync_to_disk(file);
  if (file >= 0) ::close(file);
  if (reason != 0)
    throw Error(cat(path_, ": cannot sync to disk: ", std::strerror(reason)), advice_for_writing(reason, path_));
}

}  // namespace ringtrain
