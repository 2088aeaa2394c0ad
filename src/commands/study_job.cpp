#include "commands/study_job.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>

#include "backend/cuda/backend.h"
#include "base/clock.h"
#include "base/diverged.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/log_file.h"
#include "base/shell_words.h"
#include "base/signals.h"
#include "base/system_limits.h"
#include "commands/commands.h"
#include "commands/run_training.h"
#include "commands/study_pulse.h"
#include "config/reader.h"

namespace ringtrain {
namespace {

constexpr double kLookSeconds = 0.5;             // time between two checks for dead ranks
constexpr unsigned kRungMicroseconds = 100'000;  // time between two checks for the end of a rung
constexpr double kSureSeconds = 2;               // at the end, ranks count as dead after they are missing this long
constexpr double kFarewellSeconds = 5;           // the longest time that the lowest living rank waits for the others

// A rank reports about a trial in a text. Its first line is one of these words. After an error, three more parts
// follow: the error's hint, the place in the code, and the message.
constexpr const char *kFinished = "finished", *kPaused = "paused", *kStopped = "stopped", *kDiverged = "diverged",
                     *kFailed = "failed", *kOtherFailed = "another rank failed";

std::string said_of(const char* word, const std::exception& error) {
  std::string hint = hint_of(error);
  std::ranges::replace(hint, '\n', ' ');
  return cat(word, '\n', hint, '\n', thrown_at(error), '\n', error.what());
}

std::string line_of(const std::string& text, int number) {
  std::size_t begin = 0;
  for (; number > 0 && begin != std::string::npos; --number) {
    begin = text.find('\n', begin);
    if (begin != std::string::npos) ++begin;
  }
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find('\n', begin) - begin);
}

std::vector<int> sizes_of(const StudyWork& work) {
  std::set<int, std::greater<>> sizes;
  for (const QueuedTrial& q : work.queue) sizes.insert(static_cast<int>(work.trials[q.place].ranks));
  return {sizes.begin(), sizes.end()};
}

std::optional<NodeDevices> devices_of_node(const StudyWork& work, const RankGroup& job) {
  if (!work.asks_for_gpus) return std::nullopt;
  return gather_devices(job, cuda::visible_uuids());
}

// Returns the command that goes on with the study. It repeats the overrides, which may decide the results.
std::string continuation(std::vector<std::string> command_line) {
  command_line[0] = "ringtrain";
  if (std::ranges::count(command_line, "--resume") == 0) command_line.push_back("--resume");
  return shell_command(command_line);
}

struct RanksAreMissing {};

// With --enable-recovery, Open MPI's mpirun ignores the exit codes of ranks. A signal makes mpirun return 1.
void tell_launcher() {
  const char* recovers = std::getenv("OMPI_MCA_orte_enable_recovery");
  if (recovers == nullptr || (std::string(recovers) != "1" && std::string(recovers) != "true")) return;
  std::ifstream parent(cat("/proc/", ::getppid(), "/comm"));
  std::string name;
  parent >> name;
  if (name == "mpirun" || name == "mpiexec" || name == "orterun" || name == "orted") ::kill(::getppid(), SIGTERM);
}

}  // namespace

StudyJob::StudyJob(const Session& session, StudyWork work, std::vector<std::string> command_line)
    : session_(session),
      work_(std::move(work)),
      command_line_(std::move(command_line)),
      record_(work_.folder, work_.facts, work_.trials),
      roster_(work_.folder + "/.ranks", work_.number, session.rank(), session.size()),
      devices_(devices_of_node(work_, session.job())),
      over_(work_.queue.size(), 0) {
  if (!work_.rungs.empty()) search_.emplace(work_.rungs, work_.points, work_.folder);
  session_.job().meet();  // all ranks are in the roster
  watch_ranks_of(session_.job());
  std::optional<StudyRecord> shown;
  if (session_.rank() == 0) shown.emplace(work_.folder, work_.facts, work_.trials);
  pulse_ = std::make_unique<StudyPulse>(roster_, work_, session_.size(), std::move(shown));
}

StudyJob::~StudyJob() = default;

int StudyJob::run() {
  if (session_.rank() == 0) record_.write();  // with the results of earlier jobs
  work_in_groups(session_.job(), 0);
  set_log_rank(session_.rank(), session_.host());
  roster_.stop_work();
  if (!wait_for_all()) leave_without_the_dead();
  bool stopped = false, troubled = false;
  for (const std::string& said : session_.job().gather(cat(requested_signal() != 0, !troubles_.empty()))) {
    stopped = stopped || said[0] == '1';
    troubled = troubled || said[1] == '1';
  }
  pulse_.reset();
  int code = 0;
  if (session_.rank() == 0) {
    bury_dead();
    leave_behind();
    record_.write();
    code = exit_code(stopped);
    if (code == 0 && troubled) code = exit_failed;
    say_how_it_ended(code);
  }
  return std::stoi(session_.job().gather(std::to_string(code))[0]);
}

void StudyJob::work_in_groups(const RankGroup& ranks, std::size_t size) {
  const std::vector<int> sizes = sizes_of(work_);
  while (size < sizes.size() && ranks.size() < sizes[size]) ++size;
  if (size == sizes.size()) return;
  const RankGroup group = *ranks.split(ranks.rank() / sizes[size]);
  watch_ranks_of(group);
  if (group.size() == sizes[size] && !work_off(group)) return;
  work_in_groups(group, size + 1);
}

// Runs trials on this group, one after the other. Each trial gets a copy of the group, which can be discarded if the
// trial fails. Returns true if there are no more trials for this group, and false if a rank was asked to stop.
bool StudyJob::work_off(const RankGroup& group) {
  for (;;) {
    std::optional<Taken> taken;
    std::string offer;  // from rank 0: place in the queue, where to pause, and whether to resume
    if (group.rank() == 0 && requested_signal() == 0) taken = take(group.size());
    if (taken) offer = cat(taken->queued, ' ', taken->pause, ' ', taken->resume);
    if (!taken && group.rank() == 0 && search_ && !search_->is_over()) offer = "wait";
    std::vector<std::string> said = group.gather(requested_signal() != 0 ? "stop" : offer);
    if (std::ranges::count(said, "stop") > 0) return false;
    if (said[0].empty()) return true;
    if (said[0] == "wait") {  // other groups still work on the trials of this rung
      ::usleep(kRungMicroseconds);
      continue;
    }
    const std::size_t queued = std::stoul(said[0]);
    const std::int64_t pause = std::stoll(said[0].substr(said[0].find(' ')));
    if (taken) begin(*taken);
    const std::string folder = cat(work_.folder, "/", work_.trials[work_.queue[queued].place].name);
    {
      const RankGroup ranks = *group.split(0);
      watch_ranks_of(ranks);
      said = group.gather(train(ranks, work_.queue[queued], folder, said[0].ends_with('1'),
                                taken ? taken->folder.get() : nullptr, pause));
    }
    if (taken) conclude(*taken, said);
  }
}

// Returns whether this job has no more to do for the trial. If a trial failed, the next job tries it again.
bool StudyJob::is_over(const TrialRecord& record, std::size_t place) const {
  if (record.is_over()) return true;
  if (record.state == TrialState::failed) return record.starts != work_.trials[place].starts;
  return record.state == TrialState::waiting && record.job == work_.job && !record.paused;  // the trial was stopped
}

// Returns whether the record says that this job runs the trial. The ranks of the trial may have died; see bury_dead().
bool StudyJob::is_running_here(const TrialRecord& record) const {
  return record.state == TrialState::running && record.job == work_.job;
}

// Returns the trial's state in the search. A trial that failed in this job has left its rung.
TrialStanding StudyJob::standing(const TrialRecord& record, std::size_t place) const {
  TrialStanding standing;
  const std::int64_t started = work_.trials[place].starts;  // number of starts when this job began
  if (record.state == TrialState::finished) standing.state = TrialStanding::State::finished;
  if (record.state == TrialState::diverged || (record.state == TrialState::failed && record.starts != started))
    standing.state = TrialStanding::State::ended;
  const bool evaluated = record.outcome && (record.paused || record.state == TrialState::finished);
  standing.samples = evaluated ? record.outcome->samples : 0;
  standing.loss = evaluated ? record.outcome->validation_loss.value_or(std::nan("")) : std::nan("");
  return standing;
}

void StudyJob::follow_search() {
  bury_dead();
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
    const auto lock = RunFolder::claim_where(
        folder, [&] { return read_trial_record(folder, r) && r.paused && search_->is_left_behind(i); });
    if (!lock) continue;
    r.state = TrialState::finished;
    r.paused = false;
    r.left_behind = true;
    write_trial_record(folder, r);
  }
}

std::optional<StudyJob::Taken> StudyJob::take(std::int64_t ranks) {
  if (search_) follow_search();
  for (std::size_t q = 0; q < work_.queue.size(); ++q) {
    const std::size_t place = work_.queue[q].place;
    if (over_[q] || work_.trials[place].ranks != ranks) continue;
    Taken taken{q, 0, work_.trials[place], nullptr, false};
    const std::string folder = record_.folder_of(taken.record);
    try {
      const auto look = [&] {
        read_trial_record(folder, taken.record);
        over_[q] = is_over(taken.record, place);
        if (over_[q] || is_running_here(taken.record)) return false;
        if (!search_) return true;
        const auto task = search_->task(place, standing(taken.record, place));
        taken.pause = task.value_or(0);
        return task.has_value();
      };
      taken.folder = RunFolder::claim_where(folder, look);
      if (!taken.folder) continue;
      taken.resume = std::ifstream(folder + "/run.json").good();
      return taken;
    } catch (const std::exception& error) {
      give_up(q, error);
    }
  }
  return std::nullopt;
}

void StudyJob::begin(Taken& taken) {
  TrialRecord& r = taken.record;
  r.state = TrialState::running;
  r.job = work_.job;
  r.paused = false;
  if (search_) r.rung = static_cast<std::int64_t>(search_->rung_of(work_.queue[taken.queued].place));
  ++r.starts;
  r.error = r.hint = r.thrown_at = "";
  write_trial_record(record_.folder_of(r), r);
  write_study();
}

// Trains a trial. Returns this rank's report of the run, in the form that conclude() reads.
std::string StudyJob::train(const RankGroup& ranks, const QueuedTrial& trial, const std::string& folder, bool resume,
                            const RunFolder* locked, std::int64_t pause) {
  struct OwnLog {
    OwnLog(const RankGroup& group, const std::string& path) {
      set_log_rank(group.rank(), group.host());
      try {
        set_log_file(path);
      } catch (const std::exception& error) {
        log_warning(error.what());
      }
    }
    ~OwnLog() { set_log_file(""); }
  } log(ranks, folder + "/log.txt");
  const auto say = [](const char* word, const std::exception& error) {
    const std::string hint = hint_of(error);
    log_warning("error: ", error.what(), hint.empty() ? "" : "\n  " + hint);
    return said_of(word, error);
  };
  try {
    const Experiment experiment = parse_experiment(trial.experiment, folder, {});
    const auto data = [&](Communicator& communicator) {
      const auto train = work_.indices.find(experiment.data.train);
      const auto validation = work_.indices.find(experiment.data.validation);
      if (train == work_.indices.end() || (validation == work_.indices.end() && !experiment.data.validation.empty()))
        return shared_data(experiment, communicator);  // it could not be read when the job began
      TrainingData found{train->second, std::nullopt};
      if (!experiment.data.validation.empty()) found.validation = validation->second;
      return found;
    };
    const int code = run_training({.session = session_,
                                   .group = ranks,
                                   .experiment = experiment,
                                   .data = data,
                                   .command_line = command_line_,
                                   .resume = resume,
                                   .folder = locked,
                                   .devices = devices_ ? &*devices_ : nullptr,
                                   .pause_samples = pause});
    return code == exit_checkpointed ? kStopped : code == training_paused ? kPaused : kFinished;
  } catch (const Diverged& error) {
    return say(kDiverged, error);
  } catch (const GroupFailed& error) {
    return said_of(kOtherFailed, error);
  } catch (const std::exception& error) {
    return say(kFailed, error);
  }
}

// Records the result of a trial. `said` has the report of each rank. Divergence counts more than a failure. Of equal
// reports, the first one counts.
void StudyJob::conclude(Taken& taken, const std::vector<std::string>& said) try {
  TrialRecord& r = taken.record;
  const std::string folder = record_.folder_of(r);
  const auto first = [&](const char* word) {
    return std::ranges::find_if(said, [&](const std::string& text) { return line_of(text, 0) == word; });
  };
  r.outcome = read_outcome(folder);
  r.state = r.outcome->ran_away ? TrialState::diverged : TrialState::finished;
  const bool stopped = first(kStopped) != said.end();
  if (r.outcome->ran_away && !stopped)
    r.outcome->outcome = "finished, with a training loss above that of its first step";
  r.paused = r.state == TrialState::finished && first(kPaused) != said.end();
  if (r.state == TrialState::finished && !stopped && search_) {
    r.rung_losses.resize(static_cast<std::size_t>(std::max<std::int64_t>(1, r.rung)), std::nan(""));
    r.rung_losses.back() = r.outcome->validation_loss.value_or(std::nan(""));
  }
  if (r.paused || stopped) r.state = TrialState::waiting;
  for (const char* word : {kOtherFailed, kFailed, kDiverged}) {
    const auto error = first(word);
    if (error == said.end()) continue;
    r.state = word == kDiverged ? TrialState::diverged : TrialState::failed;
    r.hint = line_of(*error, 1);
    r.thrown_at = line_of(*error, 2);
    const std::size_t text = r.hint.size() + r.thrown_at.size() + std::string(word).size() + 3;
    r.error = cat("error: ", error->substr(std::min(text, error->size())));
    r.outcome->outcome = r.error;
  }
  over_[taken.queued] = !r.paused;
  write_trial_record(folder, r);
  write_study();
  taken.folder.reset();
} catch (const std::exception& error) {
  give_up(taken.queued, error);
}

// Called if this rank cannot work on the trial, because its folder cannot be read or written.
void StudyJob::give_up(std::size_t queued, const std::exception& error) {
  over_[queued] = true;
  troubles_.push_back(cat(work_.trials[work_.queue[queued].place].name, ": ", error.what()));
  log_warning("trial ", troubles_.back());
}

// Marks trials of this job as failed if their ranks have died without a report.
void StudyJob::bury_dead() {
  record_.look();
  for (const QueuedTrial& q : work_.queue) {
    TrialRecord r = record_.trials()[q.place];
    if (!is_running_here(r)) continue;
    const std::string folder = record_.folder_of(r);
    const auto lock =
        RunFolder::claim_where(folder, [&] { return read_trial_record(folder, r) && is_running_here(r); });
    if (!lock) continue;
    r.state = TrialState::failed;
    r.outcome = read_outcome(folder);
    r.error = r.outcome->outcome = "error: a rank of its group has died";
    r.hint = "the output of the job and log.txt say more; --resume goes on from the last checkpoint";
    write_trial_record(folder, r);
  }
}

void StudyJob::write_study() {
  try {
    record_.write();
  } catch (const std::exception& error) {
    log_warning(error.what(), ": study.json is not up to date");
  }
}

// Sees to it that a rank which waits for a dead rank of its group leaves the job. The ranks of other groups go on.
void StudyJob::watch_ranks_of(const RankGroup& group) const {
  std::vector<int> ranks;
  for (const std::string& rank : group.gather(std::to_string(session_.rank()))) ranks.push_back(std::stoi(rank));
  group.set_lookout([this, ranks] {
    for (const int rank : ranks)
      if (!roster_.is_alive(rank)) {
        set_log_file("");
        log_warning("rank ", rank, " has died; rank ", session_.rank(), " worked on the same trial and leaves the job");
        leave_job(exit_hung);
      }
  });
}

int StudyJob::exit_code(bool stopped) const {
  bool failed = false, left = false;
  for (const QueuedTrial& q : work_.queue) {
    const TrialRecord& r = record_.trials()[q.place];
    failed = failed || r.state == TrialState::failed;
    left = left || (r.state == TrialState::waiting);
  }
  if (stopped && left) return exit_checkpointed;
  return failed || left ? exit_failed : 0;
}

void StudyJob::say_how_it_ended(int code) {
  std::string counts;
  for (int s = 0; s < 5; ++s)
    if (const auto count = record_.count(static_cast<TrialState>(s)); count > 0)
      counts += cat(counts.empty() ? "" : ", ", count, " ", trial_states[s]);
  log_info("study ", work_.facts.name, ": ", record_.trials().size(), " trials, ", counts, "; ", work_.folder,
           "/study.json");
  for (const TrialRecord& r : record_.trials())
    if (r.state == TrialState::failed || r.state == TrialState::diverged) log_info("  ", describe(r));
  if (code == exit_checkpointed) log_info("stopped on request: trials that had begun have a checkpoint");
  if (code != 0) log_info("continue with: ", continuation(command_line_));
}

// Waits until every rank has ended its work and has called this function. Returns true then. Returns false if ranks
// have died and no living rank is at work any more.
bool StudyJob::wait_for_all() {
  const RankGroup& job = session_.job();
  job.set_lookout(nullptr);
  double looked = 0, complete = now_seconds();  // last time when no rank was missing
  const auto look = [&] {
    ::usleep(10'000);
    const double now = now_seconds();
    if (now - looked < kLookSeconds) return;
    looked = now;
    bool all_live = true;
    for (int r = 0; r < session_.size(); ++r) all_live = all_live && roster_.is_alive(r);
    if (all_live || roster_.any_at_work()) complete = now;
    if (now - complete > kSureSeconds) throw RanksAreMissing();
  };
  try {
    job.meet(look);
    return true;
  } catch (const RanksAreMissing&) {
    return false;
  }
}

// Leaves without MPI_Finalize, which would wait for dead ranks. The lowest living rank writes the final messages.
void StudyJob::leave_without_the_dead() {
  pulse_.reset();
  for (int r = 0; r < session_.rank(); ++r)
    if (roster_.is_alive(r)) leave_job(exit_failed);
  set_log_rank(0);
  bury_dead();
  write_study();
  say_how_it_ended(exit_failed);
  const auto alone = [&] {
    for (int r = session_.rank() + 1; r < session_.size(); ++r)
      if (roster_.is_alive(r)) return false;
    return true;
  };
  for (const double begin = now_seconds(); !alone() && now_seconds() - begin < kFarewellSeconds;) ::usleep(50'000);
  std::fflush(nullptr);
  tell_launcher();
  leave_job(exit_failed);
}

}  // namespace ringtrain
