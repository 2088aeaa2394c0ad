// Shows how far the trials of a study are: StudyProgress of study.h.
#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "commands/study.h"
#include "run/progress_display.h"

namespace ringtrain {
std::string describe(const TrialRecord& record) {
  std::string text = cat(record.name, ": ", to_string(record.state));
  if (!record.error.empty()) return cat(text, ", ", record.error);
  if (!record.outcome || record.state == TrialState::running) return text;
  const TrialOutcome& o = *record.outcome;
  if (record.state == TrialState::waiting || record.state == TrialState::diverged) text += ", " + o.outcome;
  text += cat(" after ", o.final_step, " steps and ", readable_duration(o.elapsed_seconds));
  if (o.best_validation_loss) text += cat(", best validation loss ", *o.best_validation_loss);
  return text;
}

StudyProgress::StudyProgress(const StudyWork& work, int ranks)
    : work_(work),
      ranks_(ranks),
      record_(work.folder, work.facts, work.trials),
      since_(work.queue.size(), 0),
      width_(terminal_width()) {
  record_.look();  // results of earlier jobs are not reported
}

void StudyProgress::end() {
  show();
  if (bar_shown_) write_out("\n");
}

void StudyProgress::show() {
  const std::vector<std::size_t> changed = record_.look();
  for (std::size_t q = 0; q < work_.queue.size(); ++q)
    if (record_.trials()[work_.queue[q].place].state == TrialState::running && since_[q] == 0)
      since_[q] = now_seconds();
  for (const std::size_t place : changed)
    if (record_.trials()[place].state != TrialState::running) print(describe(record_.trials()[place]));
  if (width_ > 0) {
    write_out("\r\033[K" + progress_text().substr(0, static_cast<std::size_t>(width_ - 1)));
    bar_shown_ = true;
  }
}

void StudyProgress::print(const std::string& event) {
  if (width_ > 0)
    write_out(cat("\r\033[K", event, "\n"));
  else
    write_out(cat(progress_text(), "  ", event, "\n"));
}

std::string StudyProgress::progress_text() const {
  std::size_t counts[std::size(trial_states)] = {};
  for (const QueuedTrial& q : work_.queue) ++counts[static_cast<int>(record_.trials()[q.place].state)];
  const auto count = [&](TrialState state) { return counts[static_cast<int>(state)]; };
  const std::size_t failed = count(TrialState::failed), diverged = count(TrialState::diverged);
  std::string text = cat("trials ", count(TrialState::finished) + diverged + failed, "/", work_.queue.size(), " done, ",
                         count(TrialState::running), " running");
  if (diverged > 0) text += cat(", ", diverged, " diverged");
  if (failed > 0) text += cat(", ", failed, " failed");
  if (const auto left = seconds_left()) text += "  ETA " + readable_duration(*left);
  return text;
}

// Estimates the time left. The expected times may be wrong by a common factor. Trials that have finished show this
// factor.
std::optional<double> StudyProgress::seconds_left() const {
  double taken = 0, expected = 0;
  for (const QueuedTrial& q : work_.queue) {
    const TrialRecord& t = record_.trials()[q.place];
    if (t.state != TrialState::finished || !t.outcome) continue;
    taken += t.outcome->elapsed_seconds;
    expected += q.seconds;
  }
  if (expected == 0 && !work_.knows_seconds) return std::nullopt;
  const double unit = expected > 0 ? taken / expected : 1;
  double rank_seconds = 0, longest = 0;
  for (std::size_t i = 0; i < work_.queue.size(); ++i) {
    const TrialRecord& t = record_.trials()[work_.queue[i].place];
    if (t.state != TrialState::waiting && t.state != TrialState::running) continue;
    double left = unit * work_.queue[i].seconds;
    if (t.state == TrialState::running) left = std::max(0.0, left - (now_seconds() - since_[i]));
    rank_seconds += left * static_cast<double>(t.ranks);
    longest = std::max(longest, left);
  }
  return std::max(longest, rank_seconds / ranks_);
}

}  // namespace ringtrain
