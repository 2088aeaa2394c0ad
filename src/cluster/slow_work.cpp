#include "cluster/slow_work.h"

#include <array>
#include <chrono>
#include <utility>

#include "base/system_limits.h"

namespace ringtrain {

namespace {

constexpr double kRoundSeconds = 0.1;  // time between two messages to the ranks that wait

}  // namespace

SlowWork::~SlowWork() {
  if (thread_.joinable()) thread_.join();
}

void SlowWork::start(std::function<void(const Progress&)> work) {
  finish();
  running_ = true;
  thread_ = start_thread("reads or writes checkpoints", [this, work = std::move(work)] {
    try {
      work([this](std::int64_t bytes) { bytes_ += bytes; });
    } catch (...) {
      error_ = std::current_exception();
      failed_ = true;
    }
    const std::lock_guard lock(mutex_);
    running_ = false;
    ended_.notify_all();
  });
}

bool SlowWork::ended_within(double seconds) {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return !running_; });
}

void SlowWork::finish() {
  if (thread_.joinable()) thread_.join();
  failed_ = false;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void wait_together(SlowWork* work, Communicator& communicator, Watchdog& watchdog, std::int64_t step) {
  watchdog.enter(step, Phase::checkpoint);
  std::int64_t seen = work != nullptr ? work->bytes() : 0;
  for (;;) {
    std::array<double, 2> news = {0, 0};  // 1 if still at work; bytes since the last round
    if (work != nullptr) {
      const bool ended = work->ended_within(kRoundSeconds);
      const std::int64_t bytes = work->bytes();
      news = {ended ? 0.0 : 1.0, static_cast<double>(bytes - std::exchange(seen, bytes))};
    }
    communicator.poll();  // with one rank, the sum below does not poll
    communicator.sum(std::span<double>(news));
    if (news[0] == 0) return;
    if (news[1] > 0) watchdog.alive();
  }
}

}  // namespace ringtrain
