// The state of a running search: which trials may run now, until when, and which trials are promoted.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "study/search.h"

namespace ringtrain {

// The progress of a trial, read from its folder.
struct TrialStanding {
  // reached: it finished because it reached its target. ended: it failed or diverged.
  enum class State { going, finished, reached, ended } state = State::going;
  std::int64_t samples = 0;  // samples at the last pause or the end; 0: neither
  double loss = 0;           // validation loss after these samples; not finite: not evaluated
};

// The course of one search. Its decisions are stored in the study's folder, one file for each rung
// (<folder>/rung-1.json and so on, or <folder>/rung-1_global-128.json if the search has a name). Each file is written
// once. A search that continues after a kill therefore has the same promotions, and so have several jobs that work on
// one search.
class SearchCourse {
 public:
  // A trial is given by its place among those of the search. Throws Error if the folder's rungs belong to another
  // search.
  SearchCourse(const TrialSearch& search, std::string folder);

  // `standings` has the progress of all trials of the search, in their order. When all trials of the current rung have
  // reached its end, update() promotes the best points. If all trials of a point have reached their target, the search
  // ends with this rung. Several jobs may call update() at the same time. Throws Error.
  void update(const std::vector<TrialStanding>& standings);

  // Returns the task of a trial: the number of samples up to which it trains. 0 means up to the trial's end. Returns
  // nothing if the trial waits for others at the end of its rung, or if it was not promoted or has ended.
  std::optional<std::int64_t> task(std::size_t trial, const TrialStanding& standing) const;

  bool is_over() const { return over_; }         // whether nothing is left to do
  std::size_t rung_of(std::size_t trial) const;  // the last rung of the trial, counted from 1
  bool is_left_behind(std::size_t trial) const;  // whether a later rung has begun without this trial

 private:
  struct Decision {
    std::map<std::string, double> losses;  // losses of the rung's points; NaN: none
    std::vector<std::string> promoted;
  };
  std::string path_of(std::size_t rung) const;
  std::set<std::string> points_in(std::size_t rung) const;
  bool read_decision();
  void write_decision(const Decision& decision) const;
  bool belongs(std::size_t trial, std::size_t rung) const;
  bool is_done(std::size_t trial, const TrialStanding& standing) const;
  std::int64_t end_of(std::size_t rung) const;

  std::vector<Rung> rungs_;
  std::vector<std::string> points_;
  std::string name_, folder_;
  std::vector<Decision> decided_;  // decisions about the rungs before the current one
  bool over_ = false;
};

// The courses of all searches of a study. A trial is given by its place among all trials of the study.
class SearchCourses {
 public:
  // Throws Error if the folder has the rungs of another search, or of another budget.within.
  SearchCourses(const std::vector<TrialSearch>& searches, const std::string& folder);

  void update(const std::vector<TrialStanding>& standings);
  std::optional<std::int64_t> task(std::size_t place, const TrialStanding& standing) const;
  bool is_over() const;
  std::size_t rung_of(std::size_t place) const;
  bool is_left_behind(std::size_t place) const;

 private:
  struct Member {
    std::size_t course = 0, trial = 0;
  };
  std::vector<SearchCourse> courses_;
  std::vector<Member> members_;  // by place
};

}  // namespace ringtrain
