// Runs the trials of a study: run_study() of study.h.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/system_limits.h"
#include "base/text.h"
#include "commands/study.h"
#include "run/folder.h"
#include "run/run_end.h"
#include "study/search_course.h"

namespace ringtrain {
namespace {

constexpr unsigned kPauseMicroseconds = 10'000;
constexpr double kShowSeconds = 0.25;
constexpr double kRepeatSeconds = 1;  // time between two signals to a trial
constexpr double kLookSeconds = 0.5;  // time between two looks for trials that other jobs have left or promoted

// Returns the command that goes on with the study. It repeats the overrides, which may decide the results.
std::string continuation(std::vector<std::string> command_line) {
  command_line[0] = "ringtrain";
  if (std::ranges::count(command_line, "--resume") == 0) command_line.push_back("--resume");
  return shell_command(command_line);
}

// Returns the report of a run that has written none.
TrialReport report_of_exit(int code, const std::string& log) {
  if (code == 0) return {TrialReport::End::finished, "", "", ""};
  return {TrialReport::End::failed,
          code > 128          ? cat("a rank was ended by ", signal_name(code - 128))
          : code == exit_hung ? std::string("the watchdog has ended the run")
                              : cat("the run ended with exit code ", code),
          cat(log, " says more; --resume goes on from the last checkpoint"), ""};
}

// Whenever slots become free, the job takes the first trial of its queue that fits and whose folder it can lock. The
// lock lets several jobs work on one study. A trial that crashes or is killed ends alone, because no process of another
// trial belongs to its MPI job.
class StudyJob {
 public:
  StudyJob(StudyWork work, TrialLauncher launcher, std::vector<std::string> command_line);
  int run();  // see run_study()

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

StudyJob::StudyJob(StudyWork work, TrialLauncher launcher, std::vector<std::string> command_line)
    : work_(std::move(work)),
      launcher_(std::move(launcher)),
      command_line_(std::move(command_line)),
      record_(work_.folder, work_.facts, work_.trials),
      over_(work_.queue.size(), 0),
      progress_(work_, launcher_.slots().count()) {
  if (!work_.searches.empty()) search_.emplace(work_.searches, work_.folder);
}

int StudyJob::run() {
  record_.write();  // with the results of earlier jobs
  bool may_start = true;
  double looked = 0, shown = 0;
  for (;; ::usleep(kPauseMicroseconds)) {
    may_start = conclude_ended() || may_start || now_seconds() - looked > kLookSeconds;
    if (requested_signal() != 0) {
      pass_signal_on();
      may_start = false;
    } else if (may_start) {
      start_trials();
      looked = now_seconds();
      may_start = false;
    }
    if (now_seconds() - shown > kShowSeconds) {
      progress_.show();
      shown = now_seconds();
    }
    const bool waits = requested_signal() == 0 && search_ && !search_->is_over() && troubles_.empty();
    if (running_.empty() && !may_start && !waits) break;
  }
  progress_.end();
  leave_behind();
  record_.write();
  const int code = exit_code();
  say_how_it_ended(code);
  return code;
}

// Starts as many trials as there is room for.
void StudyJob::start_trials() {
  while (std::optional<Taken> taken = take()) {
    try {
      begin(*taken);
      running_.push_back(std::move(*taken));
    } catch (const std::exception& error) {
      launcher_.slots().give_back(taken->slots);
      conclude(*taken, report_of(error));
    }
  }
}

// Returns whether this job has no more to do for the trial. If a trial failed, the next job tries it again.
bool StudyJob::is_over(const TrialRecord& record, std::size_t place) const {
  if (record.is_over()) return true;
  if (record.state == TrialState::failed) return record.starts != work_.trials[place].starts;
  return record.state == TrialState::waiting && record.job == work_.job && !record.paused;  // the trial was stopped
}

// Returns the trial's state in the search. A trial that failed in this job has left its rung.
TrialStanding StudyJob::standing(const TrialRecord& record, std::size_t place) const {
  TrialStanding standing;
  const std::int64_t started = work_.trials[place].starts;  // number of starts when this job began
  if (record.state == TrialState::finished) {
    const bool reached = record.outcome && record.outcome->end == target_reached;
    standing.state = reached ? TrialStanding::State::reached : TrialStanding::State::finished;
  }
  if (record.state == TrialState::diverged || (record.state == TrialState::failed && record.starts != started))
    standing.state = TrialStanding::State::ended;
  const bool evaluated = record.outcome && (record.paused || record.state == TrialState::finished);
  standing.samples = evaluated ? record.outcome->samples : 0;
  standing.loss = evaluated ? record.outcome->validation_loss.value_or(std::nan("")) : std::nan("");
  return standing;
}

void StudyJob::follow_search() {
  record_.look();
  std::vector<TrialStanding> standings;
  for (std::size_t i = 0; i < work_.trials.size(); ++i) standings.push_back(standing(record_.trials()[i], i));
  search_->update(standings);
}

// Called at the end. Trials that paused at the end of a rung and will not be continued are recorded as finished.
void StudyJob::leave_behind() {
  if (!search_) return;
  follow_search();
  for (std::size_t i = 0; i < work_.trials.size(); ++i) {
    TrialRecord r = work_.trials[i];
    const std::string folder = record_.folder_of(r);
    const auto lock = RunFolder::claim(
        folder, [&] { return read_trial_record(folder, r) && r.paused && search_->is_left_behind(i); });
    if (!lock) continue;
    r.state = TrialState::finished;
    r.paused = false;
    r.left_behind = true;
    write_trial_record(folder, r);
  }
}

// Takes the first trial of the queue for which there is room and that no other job works on.
std::optional<StudyJob::Taken> StudyJob::take() {
  if (search_) follow_search();
  for (std::size_t q = 0; q < work_.queue.size(); ++q) {
    const bool runs = std::ranges::count(running_, q, &Taken::queued) > 0;
    if (over_[q] || runs) continue;
    Taken taken;
    taken.queued = q;
    taken.record = work_.trials[work_.queue[q].place];
    const auto slots = launcher_.slots().take(taken.record.ranks);
    if (!slots) continue;
    taken.slots = *slots;
    try {
      if (claim(taken)) return taken;
    } catch (const std::exception& error) {
      give_up(q, error);
    }
    launcher_.slots().give_back(*slots);
  }
  return std::nullopt;
}

// Locks the trial's folder if there is something to do in it.
bool StudyJob::claim(Taken& taken) {
  const std::size_t place = work_.queue[taken.queued].place;
  const std::string folder = record_.folder_of(taken.record);
  const auto look = [&] {
    read_trial_record(folder, taken.record);
    over_[taken.queued] = is_over(taken.record, place);
    if (over_[taken.queued]) return false;
    if (!search_) return true;
    const auto task = search_->task(place, standing(taken.record, place));
    taken.pause = task.value_or(0);
    return task.has_value();
  };
  taken.folder = RunFolder::claim(folder, look);
  return taken.folder != nullptr;
}

void StudyJob::begin(Taken& taken) {
  TrialRecord& r = taken.record;
  const std::string folder = record_.folder_of(r), report = cat(folder, "/", trial_report_name),
                    experiment = cat(folder, "/", trial_experiment_name);
  r.state = TrialState::running;
  r.job = work_.job;
  r.paused = false;
  if (search_) r.rung = static_cast<std::int64_t>(search_->rung_of(work_.queue[taken.queued].place));
  ++r.starts;
  r.error = r.hint = r.thrown_at = "";
  if (!replace_cache_file(experiment, work_.queue[taken.queued].experiment))  // nothing is lost if it is written again
    throw Error(cat(experiment, ": cannot write"), advice_for_writing(errno, experiment));
  std::error_code ignored;
  std::filesystem::remove(report, ignored);
  std::vector<std::string> words = {"train", experiment, "--resume", "--report", report};
  if (taken.pause > 0) words.insert(words.end(), {"--pause-after", cat(taken.pause)});
  if (launcher_.slots().count() > r.ranks) words.push_back("--shares-node");
  write_trial_record(folder, r);
  write_study();
  taken.process = launcher_.start(taken.slots, words, cat(folder, "/", trial_log_name));
}

// Returns whether a trial has ended.
bool StudyJob::conclude_ended() {
  const std::size_t before = running_.size();
  for (Taken& taken : running_)
    if (const std::optional<int> code = taken.process->ended()) {
      conclude(taken, report_of_run(taken, *code));
      launcher_.slots().give_back(taken.slots);
      taken.process.reset();
    }
  std::erase_if(running_, [](const Taken& taken) { return taken.process == nullptr; });
  return running_.size() < before;
}

TrialReport StudyJob::report_of_run(const Taken& taken, int code) const {
  const std::string folder = record_.folder_of(taken.record), path = cat(folder, "/", trial_report_name);
  const std::optional<TrialReport> report = read_report(path);
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  if (report) return *report;
  // The signal may have come before the launcher or the run could catch it.
  if (taken.told_to_stop > 0) return {TrialReport::End::stopped, "", "", ""};
  return report_of_exit(code, cat(folder, "/", trial_log_name));
}

// Records the result of a trial. A signal that has stopped the trial also stops the study.
void StudyJob::conclude(Taken& taken, const TrialReport& report) try {
  TrialRecord& r = taken.record;
  const std::string folder = record_.folder_of(r);
  const bool stopped = report.end == TrialReport::End::stopped;
  const bool failed = !stopped && !report.error.empty(), paused = report.end == TrialReport::End::paused;
  r.outcome = read_outcome(folder);
  r.state = r.outcome->ran_away ? TrialState::diverged : TrialState::finished;
  if (r.outcome->ran_away && !stopped)
    r.outcome->outcome = "finished, with a training loss above that of its first step";
  r.paused = r.state == TrialState::finished && paused;
  if (r.state == TrialState::finished && !stopped && search_) {
    r.rung_losses.resize(static_cast<std::size_t>(std::max<std::int64_t>(1, r.rung)), std::nan(""));
    r.rung_losses.back() = r.outcome->validation_loss.value_or(std::nan(""));
  }
  if (r.paused || stopped) r.state = TrialState::waiting;
  if (failed) {
    r.state = report.end == TrialReport::End::diverged ? TrialState::diverged : TrialState::failed;
    r.hint = report.hint;
    r.thrown_at = report.thrown_at;
    r.error = r.outcome->outcome = cat("error: ", report.error);
  }
  over_[taken.queued] = !r.paused;
  write_trial_record(folder, r);
  write_study();
  taken.folder.reset();
  if (stopped) request_stop(SIGUSR1);
} catch (const std::exception& error) {
  give_up(taken.queued, error);
}

// SIGUSR1 is the signal that mpirun and srun forward to their ranks. A launcher that has no ranks yet loses it, so it
// is repeated. A run takes notice of the first one only.
void StudyJob::pass_signal_on() {
  for (Taken& taken : running_) {
    if (now_seconds() - taken.told_to_stop < kRepeatSeconds) continue;
    taken.told_to_stop = now_seconds();
    taken.process->send(SIGUSR1);
  }
}

// Called if this job cannot work on the trial, because its folder cannot be read or written.
void StudyJob::give_up(std::size_t queued, const std::exception& error) {
  over_[queued] = true;
  troubles_.push_back(cat(work_.trials[work_.queue[queued].place].name, ": ", error.what()));
  log_warning("trial ", troubles_.back());
}

void StudyJob::write_study() {
  try {
    record_.write();
  } catch (const std::exception& error) {
    log_warning(error.what(), ": study.json is not up to date");
  }
}

int StudyJob::exit_code() const {
  bool failed = false, left = false;
  for (const QueuedTrial& q : work_.queue) {
    const TrialRecord& r = record_.trials()[q.place];
    failed = failed || r.state == TrialState::failed;
    left = left || (r.state == TrialState::waiting);
  }
  if (requested_signal() != 0 && left) return exit_checkpointed;
  return failed || left || !troubles_.empty() ? exit_failed : 0;
}

void StudyJob::say_how_it_ended(int code) {
  std::string counts;
  for (std::size_t s = 0; s < std::size(trial_states); ++s)
    if (const auto count = record_.count(static_cast<TrialState>(s)); count > 0)
      counts += cat(counts.empty() ? "" : ", ", count, " ", trial_states[s]);
  log_info("study ", work_.facts.name, ": ", record_.trials().size(), " trials, ", counts, "; ", work_.folder,
           "/study.json");
  for (const TrialRecord& r : record_.trials())
    if (r.state == TrialState::failed || r.state == TrialState::diverged) log_info("  ", describe(r));
  if (code == exit_checkpointed) log_info("stopped on request: trials that had begun have a checkpoint");
  if (code != 0) log_info("continue with: ", continuation(command_line_));
}

}  // namespace

int run_study(StudyWork work, TrialLauncher launcher, std::vector<std::string> command_line) {
  return StudyJob(std::move(work), std::move(launcher), std::move(command_line)).run();
}

}  // namespace ringtrain
