#include "run/progress_display.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/table.h"

namespace ringtrain {
namespace {

constexpr double smoothing_seconds = 5;
constexpr double seconds_between_drawings = 0.2;

std::string readable_rate(double rate) {
  return rate >= 100 ? with_thousands(std::llround(rate)) : printed("%.3g", rate);
}

// Returns a text such as "  41 % of bound" or "  3.2 % of bound"; "" for a share that is not known. A share above 1 is
// no measurement: the machine was busy when its rate was measured.
std::string share_text(double share) {
  if (share <= 0) return "";
  if (share > 1) return "  over 100 % of bound";
  return cat("  ", printed(share >= 0.0995 ? "%.0f" : "%.2g", 100 * share), " % of bound");
}

std::string step_text(const StepReport& report, std::int64_t total_steps) {
  return total_steps > 0 ? cat("step ", report.position.step, "/", total_steps) : cat("step ", report.position.step);
}

std::string eta_text(const StepReport& report, std::int64_t total_steps, const SmoothedRate& rate) {
  if (total_steps <= 0 || rate.seconds_per_step() <= 0) return "";
  const auto left = static_cast<double>(std::max<std::int64_t>(total_steps - report.position.step, 0));
  return "  ETA " + readable_duration(left * rate.seconds_per_step());
}

// Returns a line for a batch log, which also has epoch, learning rate and gradient norm. `samples_per_second` and
// `share_of_bound` are those of the steps since the previous line. A share of 0 is not known and not shown. `rate`
// gives the ETA.
std::string progress_line(const StepReport& report, std::int64_t total_steps, const SmoothedRate& rate,
                          double samples_per_second, double share_of_bound) {
  return cat(step_text(report, total_steps), printed("  epoch %.2f", report.run.epoch),
             printed("  loss %.4f", report.loss), printed("  lr %.4g", report.learning_rate),
             printed("  grad norm %.4g", report.gradient_norm), "  ", readable_rate(samples_per_second), " samples/s",
             share_text(share_of_bound), eta_text(report, total_steps, rate));
}

}  // namespace

void SmoothedRate::add(std::int64_t samples, double seconds, double bound_seconds) {
  const double keep = std::exp(-std::max(seconds, 0.0) / smoothing_seconds);
  samples_ = keep * samples_ + static_cast<double>(samples);
  seconds_ = keep * seconds_ + seconds;
  bound_seconds_ = keep * bound_seconds_ + bound_seconds;
  steps_ = keep * steps_ + 1;
}

std::string readable_duration(double seconds) {
  if (!(seconds >= 0) || seconds > longest_duration) return "unknown";
  const long long s = std::llround(seconds);
  if (s < 60) return printed("%llds", s);
  if (s < 3600) return printed("%lld:%02lld", s / 60, s % 60);
  if (s < 86400) return printed("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
  return printed("%lldd %02lld:%02lld", s / 86400, s / 3600 % 24, s / 60 % 60);
}

std::string progress_bar(const StepReport& report, std::int64_t total_steps, const SmoothedRate& rate, int width) {
  const std::string left = step_text(report, total_steps);
  const std::string right =
      cat("  ", readable_rate(rate.samples_per_second()), " samples/s", share_text(rate.share_of_bound()), "  loss ",
          printed("%.4f", report.loss), eta_text(report, total_steps, rate));
  const auto columns =
      static_cast<std::size_t>(std::max(width - 1, 1));  // a text in the last column would wrap on some terminals
  const std::size_t text_columns = left.size() + right.size() + 3;  // " [" and "]"
  std::string bar;
  if (total_steps > 0 && columns >= text_columns + 5) {
    const std::size_t cells = std::min<std::size_t>(columns - text_columns, 40);
    const double share =
        std::clamp(static_cast<double>(report.position.step) / static_cast<double>(total_steps), 0.0, 1.0);
    const auto done = static_cast<std::size_t>(share * static_cast<double>(cells));
    bar = std::string(done, '=');
    if (done < cells) bar += '>' + std::string(cells - done - 1, ' ');
    bar = " [" + bar + "]";
  }
  return (left + bar + right).substr(0, columns);
}

int terminal_width() {
  if (::isatty(STDOUT_FILENO) == 0) return 0;
  const char* kind = std::getenv("TERM");
  if (kind != nullptr && std::strcmp(kind, "dumb") == 0) return 0;
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

ProgressDisplay::ProgressDisplay(std::int64_t total_steps, std::int64_t log_every_steps)
    : total_steps_(total_steps), log_every_steps_(log_every_steps) {
  if (log_every_steps_ <= 0) log_every_steps_ = total_steps > 0 ? std::max<std::int64_t>(total_steps / 20, 1) : 100;
}

ProgressDisplay::~ProgressDisplay() {
  finish();
}

void ProgressDisplay::finish() {
  if (bar_shown_ || !last_shown_) draw();
  if (bar_shown_) write_out("\n");
  bar_shown_ = false;
}

void ProgressDisplay::make_room() {
  if (!bar_shown_) return;
  write_out("\r\033[K");
  bar_shown_ = false;
  last_shown_ = false;
  drawn_at_ = 0;
}

void ProgressDisplay::step(const StepReport& report) {
  const double bound_seconds = report.run.share_of_bound.value_or(0) * report.run.seconds;
  rate_.add(report.samples, report.run.seconds, bound_seconds);
  interval_samples_ += static_cast<double>(report.samples);
  interval_seconds_ += report.run.seconds;
  interval_bound_seconds_ += bound_seconds;
  const bool first = !last_;
  last_ = report;
  last_shown_ = false;
  const bool due = terminal_width() > 0 ? now_seconds() - drawn_at_ >= seconds_between_drawings
                                        : report.position.step % log_every_steps_ == 0;
  if (first || due || report.position.step == total_steps_) draw();
}

void ProgressDisplay::line(const std::string& text) {
  if (!bar_shown_) {
    write_out(text + "\n");
    return;
  }
  write_out("\r\033[K" + text + "\n");
  draw();
}

void ProgressDisplay::draw() {
  const int width = terminal_width();
  if (width > 0) {
    write_out("\r\033[K" + progress_bar(*last_, total_steps_, rate_, width));
    bar_shown_ = true;
    drawn_at_ = now_seconds();
  } else {
    const double seconds = interval_seconds_;
    const double rate = seconds > 0 ? interval_samples_ / seconds : 0;
    const double share = seconds > 0 ? interval_bound_seconds_ / seconds : 0;
    write_out(progress_line(*last_, total_steps_, rate_, rate, share) + "\n");
    interval_samples_ = interval_seconds_ = interval_bound_seconds_ = 0;
  }
  last_shown_ = true;
}

}  // namespace ringtrain
