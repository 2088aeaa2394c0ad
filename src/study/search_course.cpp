#include "study/search_course.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"

namespace ringtrain {
namespace {

constexpr double no_loss = std::numeric_limits<double>::quiet_NaN();

// Returns the mean loss over the seeds of each point. It is NaN if one of the seeds has no finite loss.
std::map<std::string, double> mean_losses(const std::map<std::string, std::vector<double>>& all) {
  std::map<std::string, double> means;
  for (const auto& [point, losses] : all) {
    double sum = 0;
    for (const double loss : losses) sum += std::isfinite(loss) ? loss : no_loss;
    means[point] = sum / static_cast<double>(losses.size());
  }
  return means;
}

}  // namespace

SearchCourse::SearchCourse(const TrialSearch& search, std::string folder)
    : rungs_(search.rungs), points_(search.points), name_(search.name), folder_(std::move(folder)) {
  while (read_decision()) {
  }
}

std::string SearchCourse::path_of(std::size_t rung) const {
  return cat(folder_, "/rung-", rung + 1, name_.empty() ? "" : "_", name_, ".json");
}

std::int64_t SearchCourse::end_of(std::size_t rung) const {
  return rung + 1 == rungs_.size() ? 0 : rungs_[rung].samples;
}

// Returns the points that run in a rung. The rungs before it have been decided.
std::set<std::string> SearchCourse::points_in(std::size_t rung) const {
  const std::vector<std::string>& points = rung == 0 ? points_ : decided_[rung - 1].promoted;
  return {points.begin(), points.end()};
}

// Reads the decision of the current rung, if there is one. The next rung then becomes the current one.
bool SearchCourse::read_decision() {
  const std::size_t rung = decided_.size();
  const std::string path = path_of(rung);
  std::ifstream file(path);
  if (!file || rung + 1 >= rungs_.size()) return false;
  const char* const move_away = "move it away: the rung is then decided again";
  try {
    const auto json = parse_json(file);
    if (!json.is_object()) throw Error(cat(path, ": is no JSON"), move_away);
    Decision decision;
    const auto samples = integer_in<std::int64_t>(json.at("samples")).value_or(-1);
    for (const auto& [point, loss] : json.at("losses").items())
      decision.losses[point] = real_in(loss).value_or(no_loss);
    decision.promoted = json.at("promoted").get<std::vector<std::string>>();
    const std::set<std::string> expected = points_in(rung);
    std::set<std::string> compared;
    for (const auto& [point, loss] : decision.losses) compared.insert(point);
    if (samples != rungs_[rung].samples || compared != expected)
      throw Error(
          cat(path, ": ", compared.size(), " points to ", samples, " samples were compared, but this study has ",
              expected.size(), compared.size() == expected.size() && compared != expected ? " others" : "", " to ",
              rungs_[rung].samples),
          "the points and the budget of a search stay as they are: give the study another name");
    decided_.push_back(std::move(decision));
  } catch (const Json::exception& error) {
    throw Error(cat(path, ": cannot be read: ", said_by(error)), move_away);
  }
  return true;
}

// Writes the decision to a file of its own and links it to the rung's path. If several jobs decide at the same time,
// the first link counts.
void SearchCourse::write_decision(const Decision& decision) const {
  const std::size_t rung = decided_.size();
  Json losses = Json::object();
  for (const auto& [point, loss] : decision.losses) losses[point] = std::isfinite(loss) ? Json(loss) : Json();
  const Json json = {
      {"rung", rung + 1}, {"samples", rungs_[rung].samples}, {"losses", losses}, {"promoted", decision.promoted}};
  const std::string path = path_of(rung), own = cat(path, ".", ::getpid());
  write_file_atomically(own, json.dump(2) + "\n");
  const bool linked = ::link(own.c_str(), path.c_str()) == 0 || errno == EEXIST;
  if (!linked && std::rename(own.c_str(), path.c_str()) == 0) return;  // the file system has no hard links
  const int reason = errno;
  ::unlink(own.c_str());
  if (!linked)
    throw Error(cat(path, ": cannot write which trials go on: ", std::strerror(reason)),
                advice_for_writing(reason, path));
}

bool SearchCourse::belongs(std::size_t trial, std::size_t rung) const {
  return rung == 0 || (rung <= decided_.size() && std::ranges::count(decided_[rung - 1].promoted, points_[trial]) > 0);
}

bool SearchCourse::is_done(std::size_t trial, const TrialStanding& standing) const {
  if (standing.state != TrialStanding::State::going) return true;
  const std::int64_t end = end_of(rung_of(trial) - 1);
  return end > 0 && standing.samples >= end;
}

void SearchCourse::update(const std::vector<TrialStanding>& standings) {
  while (true) {
    while (read_decision()) {  // another job may have decided
    }
    const std::size_t rung = decided_.size();
    std::map<std::string, std::vector<double>> losses;
    std::map<std::string, int> reached;  // of each point: how many of its trials have reached the target
    for (std::size_t i = 0; i < points_.size(); ++i) {
      if (!belongs(i, rung)) continue;
      if (!is_done(i, standings[i])) return;
      const bool ended = standings[i].state == TrialStanding::State::ended;
      losses[points_[i]].push_back(ended ? no_loss : standings[i].loss);
      reached[points_[i]] += standings[i].state == TrialStanding::State::reached ? 1 : 0;
    }
    if (rung + 1 == rungs_.size() || losses.empty()) {
      over_ = true;
      return;
    }
    Decision decision{mean_losses(losses), {}};
    std::vector<RungLoss> list;
    bool is_found = false;
    for (const auto& [point, loss] : decision.losses) {
      list.push_back({point, loss, reached[point]});
      is_found = is_found || std::cmp_equal(reached[point], losses[point].size());
    }
    if (!is_found) decision.promoted = promoted(std::move(list), rungs_[rung + 1].points);
    write_decision(decision);
  }
}

std::optional<std::int64_t> SearchCourse::task(std::size_t trial, const TrialStanding& standing) const {
  if (is_left_behind(trial) || is_done(trial, standing)) return std::nullopt;
  return end_of(rung_of(trial) - 1);
}

std::size_t SearchCourse::rung_of(std::size_t trial) const {
  std::size_t rung = 0;
  while (rung < decided_.size() && belongs(trial, rung + 1)) ++rung;
  return rung + 1;
}

bool SearchCourse::is_left_behind(std::size_t trial) const {
  return rung_of(trial) <= decided_.size();
}

namespace {

// Returns the key within whose values a decision's file says that trials were compared: "global" for
// rung-2_global-128.json, and "" for rung-2.json. Returns nothing for other files.
std::optional<std::string_view> key_of_decision(std::string_view file) {
  constexpr std::string_view begin = "rung-", end = ".json";
  if (!file.starts_with(begin) || !file.ends_with(end)) return std::nullopt;
  file.remove_prefix(begin.size());
  const std::size_t digits = std::min(file.find_first_not_of("0123456789"), file.size());
  if (digits == 0) return std::nullopt;
  file.remove_prefix(digits);
  if (file == end) return "";
  const std::size_t dash = file.find('-');
  if (file.front() != '_' || dash == std::string_view::npos || dash == 1) return std::nullopt;
  return file.substr(1, dash - 1);
}

// Throws Error if the folder has decisions of a study with another budget.within.
void check_decisions(const std::vector<TrialSearch>& searches, const std::string& folder) {
  const std::string& name = searches.front().name;  // global-128
  const std::string key = name.substr(0, name.find('-'));
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(folder, missing)) {
    const std::string file = entry.path().filename();
    if (key_of_decision(file).value_or(key) != key)
      throw Error(cat(folder, "/", file, ": this study's searches were decided with another budget.within"),
                  "budget.within stays as it is: give the study another name");
  }
}

}  // namespace

SearchCourses::SearchCourses(const std::vector<TrialSearch>& searches, const std::string& folder) {
  check_decisions(searches, folder);
  std::size_t trials = 0;
  for (const TrialSearch& search : searches) trials += search.places.size();
  members_.resize(trials);
  for (const TrialSearch& search : searches) {
    for (std::size_t trial = 0; trial < search.places.size(); ++trial)
      members_[search.places[trial]] = {courses_.size(), trial};
    courses_.emplace_back(search, folder);
  }
}

void SearchCourses::update(const std::vector<TrialStanding>& standings) {
  std::vector<std::vector<TrialStanding>> parts(courses_.size());
  for (std::size_t place = 0; place < members_.size(); ++place)  // the trials of a course are in the study's order
    parts[members_[place].course].push_back(standings[place]);
  for (std::size_t i = 0; i < courses_.size(); ++i) courses_[i].update(parts[i]);
}

std::optional<std::int64_t> SearchCourses::task(std::size_t place, const TrialStanding& standing) const {
  return courses_[members_[place].course].task(members_[place].trial, standing);
}

bool SearchCourses::is_over() const {
  return std::ranges::all_of(courses_, [](const SearchCourse& course) { return course.is_over(); });
}

std::size_t SearchCourses::rung_of(std::size_t place) const {
  return courses_[members_[place].course].rung_of(members_[place].trial);
}

bool SearchCourses::is_left_behind(std::size_t place) const {
  return courses_[members_[place].course].is_left_behind(members_[place].trial);
}

}  // namespace ringtrain
