#include "data_prep/common/parallel.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <iostream>
#include <limits>
#include <system_error>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/system_limits.h"
#include "base/table.h"

namespace ringtrain {
namespace {

constexpr double terminal_step_seconds = 0.2, line_step_seconds = 20;

std::atomic<int> most_granted = std::numeric_limits<int>::max();

void warn_once_of_missing_thread(std::int64_t started, std::int64_t wanted) {
  static std::once_flag once;
  std::call_once(once, [&] {
    std::cerr << cat("ringtrain-data: warning: works with ", started, " of ", wanted, " threads, because ",
                     limits_of_threads(), "\n");
  });
}

}  // namespace

void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t)>& action) {
  std::atomic<std::int64_t> next = 0;
  std::exception_ptr failure;
  std::mutex failing;
  const auto work = [&] {
    for (std::int64_t i = next++; i < count; i = next++) {
      try {
        action(i);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(failing);
        if (!failure) failure = std::current_exception();
        next = count;
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::int64_t t = 1; t < std::min<std::int64_t>(threads, count); ++t) try {
        others.emplace_back(work);
      } catch (const std::system_error&) {
        most_granted = std::min(most_granted.load(), static_cast<int>(t));
        warn_once_of_missing_thread(t, threads);
        break;
      }
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

int threads_granted(int threads) {
  return std::min(threads, most_granted.load());
}

ProgressLine::ProgressLine(std::string what, std::int64_t total, bool shown)
    : what_(std::move(what)),
      total_(total),
      shown_(shown),
      terminal_(::isatty(STDERR_FILENO) != 0),
      start_seconds_(now_seconds()),
      next_seconds_(start_seconds_ + (terminal_ ? terminal_step_seconds : line_step_seconds)) {}

ProgressLine::~ProgressLine() {
  if (!printed_) return;
  print(done_);
  if (terminal_) std::cerr << "\n";
}

void ProgressLine::add(std::int64_t count) {
  const std::int64_t done = done_ += count;
  if (!shown_ || now_seconds() < next_seconds_) return;
  const std::unique_lock<std::mutex> lock(printing_, std::try_to_lock);
  if (!lock.owns_lock() || now_seconds() < next_seconds_) return;
  next_seconds_ = now_seconds() + (terminal_ ? terminal_step_seconds : line_step_seconds);
  print(done);
}

void ProgressLine::print(std::int64_t done) {
  const double seconds = now_seconds() - start_seconds_;
  const auto left = static_cast<long long>(seconds * static_cast<double>(total_ - done) /
                                           static_cast<double>(std::max<std::int64_t>(1, done)));
  std::cerr << (cat(terminal_ ? "\r" : "", what_, " ", with_thousands(done), " of ", with_thousands(total_), " (",
                    done * 100 / std::max<std::int64_t>(1, total_), " %), ", left, " s left",
                    terminal_ ? "    " : "\n"))
            << std::flush;
  printed_ = true;
}

}  // namespace ringtrain
