// A job that works on a study. Its ranks form groups, and each group runs one trial after the other.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/device_choice.h"
#include "cluster/roster.h"
#include "cluster/session.h"
#include "run/folder.h"
#include "study/search_course.h"
#include "study/study_work.h"

namespace ringtrain {

// The job splits its ranks into groups of the largest number of ranks that a trial needs. Ranks that are left over are
// split into groups of the next smaller number, and so are groups that find no more trials of their size. Rank 0 of a
// group takes the first trial in the queue whose folder it can lock. No process assigns trials. Therefore several jobs
// can work on one study, and no group depends on ranks of other groups.
class StudyJob {
 public:
  // Collective over the job. `work` is the same on all ranks.
  StudyJob(const Session& session, StudyWork work, std::vector<std::string> command_line);

  ~StudyJob();

  // Runs the trials. Returns the exit code: 85 if the job was asked to stop before all trials had ended, otherwise 1 if
  // a trial of the queue has failed or could not be run, otherwise 0. Collective over the job. If a rank of the job has
  // died, the function ends the process instead of returning.
  int run();

 private:
  struct Taken {
    std::size_t queued = 0;  // place in the queue
    std::int64_t pause = 0;  // samples after which the trial pauses, at the end of a rung; 0: it does not pause
    TrialRecord record;
    std::unique_ptr<RunFolder> folder;
    bool resume = false;
  };

  void work_in_groups(const RankGroup& ranks, std::size_t size);
  bool work_off(const RankGroup& group);
  bool is_over(const TrialRecord& record, std::size_t place) const;
  bool is_running_here(const TrialRecord& record) const;
  std::optional<Taken> take(std::int64_t ranks);
  TrialStanding standing(const TrialRecord& record, std::size_t place) const;
  void follow_search();
  void leave_behind();
  void begin(Taken& taken);
  std::string train(const RankGroup& ranks, const QueuedTrial& trial, const std::string& folder, bool resume,
                    const RunFolder* locked, std::int64_t pause);
  void conclude(Taken& taken, const std::vector<std::string>& said);
  void give_up(std::size_t queued, const std::exception& error);
  void bury_dead();
  void write_study();
  void watch_ranks_of(const RankGroup& group) const;
  int exit_code(bool stopped) const;
  void say_how_it_ended(int code);
  bool wait_for_all();
  [[noreturn]] void leave_without_the_dead();

  const Session& session_;
  const StudyWork work_;
  const std::vector<std::string> command_line_;
  StudyRecord record_;
  Roster roster_;
  std::optional<NodeDevices> devices_;
  std::optional<SearchCourse> search_;  // the course of search: halving; nothing with search: all
  std::vector<char> over_;              // by place in the queue: whether the trial is over, as far as this rank knows
  std::vector<std::string> troubles_;   // reasons why this rank could not work on a trial
  std::unique_ptr<class StudyPulse> pulse_;
};

}  // namespace ringtrain
