// A job that works on a study. It starts each trial as `ringtrain train` on ranks of its own, as many side by side as
// fit.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands/study_progress.h"
#include "run/folder.h"
#include "study/search_course.h"
#include "study/study_work.h"
#include "study/trial_launcher.h"
#include "study/trial_record.h"

namespace ringtrain {

// Whenever slots become free, the job takes the first trial of its queue that fits and whose folder it can lock. The
// lock lets several jobs work on one study. A trial that crashes or is killed ends alone, because no process of another
// trial belongs to its MPI job.
class StudyJob {
 public:
  StudyJob(StudyWork work, TrialLauncher launcher, std::vector<std::string> command_line);
  ~StudyJob();

  // Runs the trials. Returns the exit code: 85 if the job or a trial was asked to stop before all trials had ended,
  // otherwise 1 if a trial of the queue has failed or could not be run, otherwise 0.
  int run();

 private:
  struct Taken {
    std::size_t queued = 0;  // place in the queue
    std::int64_t pause = 0;  // samples after which the trial pauses, at the end of a rung; 0: it does not pause
    TrialRecord record;
    std::vector<std::size_t> slots;
    std::unique_ptr<RunFolder> folder;  // the lock
    std::unique_ptr<ChildProcess> process;
    double told_to_stop = 0;  // time of the last signal to it, by now_seconds(); 0: none
  };

  bool is_over(const TrialRecord& record, std::size_t place) const;
  std::optional<Taken> take();
  bool claim(Taken& taken);
  TrialStanding standing(const TrialRecord& record, std::size_t place) const;
  void follow_search();
  void leave_behind();
  void start_trials();
  void begin(Taken& taken);
  bool conclude_ended();
  TrialReport report_of_run(const Taken& taken, int code) const;
  void conclude(Taken& taken, const TrialReport& report);
  void pass_signal_on();
  void give_up(std::size_t queued, const std::exception& error);
  void write_study();
  int exit_code() const;
  void say_how_it_ended(int code);

  const StudyWork work_;
  TrialLauncher launcher_;
  const std::vector<std::string> command_line_;
  StudyRecord record_;
  std::optional<SearchCourses> search_;  // the courses of search: halving; nothing with search: all
  std::vector<char> over_;               // by place in the queue: whether the trial is over, as far as this job knows
  std::vector<std::string> troubles_;    // reasons why this job could not work on a trial
  StudyProgress progress_;
  std::vector<Taken> running_;
};

}  // namespace ringtrain
