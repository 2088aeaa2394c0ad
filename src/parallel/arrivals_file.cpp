#include "parallel/arrivals_file.h"

#include <array>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "base/utf8.h"

namespace ringtrain {
namespace {

constexpr const char* header = "step,update,worker,version,staleness,samples";
constexpr const char* header_without_samples = "step,update,worker,version,staleness";

std::string line_of(const Arrival& a) {
  return cat(a.step, ",", a.update, ",", a.worker, ",", a.version, ",", a.staleness(), ",", a.samples, "\n");
}

// Returns nothing if the line has another form or its numbers contradict each other.
std::optional<Arrival> arrival_of(std::string_view line, std::size_t columns) {
  std::array<std::int64_t, 6> numbers{};
  for (std::size_t i = 0; i < columns; ++i) {
    const auto [end, failed] = std::from_chars(line.data(), line.data() + line.size(), numbers[i]);
    if (failed != std::errc() || numbers[i] < 0) return std::nullopt;
    line.remove_prefix(static_cast<std::size_t>(end - line.data()));
    if (i + 1 == columns) break;
    if (!line.starts_with(',')) return std::nullopt;
    line.remove_prefix(1);
  }
  const Arrival arrival{numbers[0], numbers[1], numbers[2], numbers[3], numbers[5]};
  if (!line.empty() || numbers[4] != arrival.staleness()) return std::nullopt;
  return arrival;
}

}  // namespace

std::vector<Arrival> read_arrivals(const std::string& path, std::int64_t after_step, const std::string& name) {
  std::ifstream in(path);
  std::string line;
  const std::string& what = name.empty() ? path : name;
  const char* const hint = "give the arrivals.csv of an asynchronous run's folder";
  if (!in || !std::getline(in, line)) throw Error(cat(what, ": cannot be read as an order of arrival"), hint);
  const std::size_t columns = line == header ? 6 : 5;
  if (line != header && line != header_without_samples)
    throw Error(cat(what, " begins with ", shown(line), ", expected '", header, "'"), hint);
  std::vector<Arrival> arrivals;
  for (std::int64_t number = 2; std::getline(in, line); ++number) {
    if (in.eof()) break;  // a kill has cut the line off
    const auto arrival = arrival_of(line, columns);
    if (!arrival)
      throw Error(cat(what, ", line ", number, " is ", shown(line), ", expected ", columns, " whole numbers: ", header),
                  hint);
    if (arrival->step > after_step) arrivals.push_back(*arrival);
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
