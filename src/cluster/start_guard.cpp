#include "cluster/start_guard.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/system_limits.h"
#include "cluster/session.h"
#include "cluster/slurm_job.h"

namespace ringtrain {
namespace {

constexpr double kStartSeconds = 600;
constexpr double kApart = 1;  // seconds that rank r + 1 waits longer than rank r, so that one rank prints first
constexpr int kRanksApart = 10;

double start_seconds() {
  const char* text = std::getenv("RINGTRAIN_START_SECONDS");
  if (text == nullptr || *text == '\0') return kStartSeconds;
  double seconds = 0;
  const auto [end, failed] = std::from_chars(text, text + std::strlen(text), seconds);
  if (failed != std::errc() || *end != '\0' || !(seconds > 0 && seconds <= 1e9))
    throw Error(cat("RINGTRAIN_START_SECONDS is '", text, "', expected seconds above 0"), "leave it unset for 600");
  return seconds;
}

}  // namespace

struct StartGuard::State {
  std::string what;
  double limit = 0;
  std::mutex mutex;
  std::condition_variable over;
  bool is_over = false;
  std::thread thread;

  // Counts ticks as the watchdog does. A tick that took much longer than expected means that the process was suspended.
  void watch() {
    const double tick = std::clamp(limit / 20, 0.01, 0.5);
    double waited = -kApart * std::min(launched_rank(), kRanksApart), last = now_seconds();
    std::unique_lock lock(mutex);
    while (!over.wait_for(lock, std::chrono::duration<double>(tick), [this] { return is_over; })) {
      const double now = now_seconds();
      waited += std::min(now - last, std::max(1.0, 4 * tick));
      last = now;
      if (waited <= limit) continue;
      char host[256] = "";
      ::gethostname(host, sizeof host - 1);
      const std::string text =
          cat("\nringtrain: ", what, " within ", limit, " s (seen by rank ", launched_rank(), " on ", host, ", pid ",
              ::getpid(), "); ending the job. A process of the job hangs, was stopped, or did not start: look at the ",
              "processes on the nodes. If the start is only slow, raise RINGTRAIN_START_SECONDS (start of MPI) or ",
              "communication.timeout_seconds (all later steps of the start)\n");
      std::fputs(text.c_str(), stderr);
      abort_job(exit_hung);
    }
  }
};

StartGuard::StartGuard(std::string what, double seconds) {
  const double limit = seconds > 0 ? seconds : start_seconds();
  if (launched_tasks() <= 1) return;
  state_ = std::make_unique<State>();
  state_->what = std::move(what);
  state_->limit = limit;
  state_->thread = start_thread("watches the start of MPI", [state = state_.get()] { state->watch(); });
}

StartGuard::~StartGuard() {
  if (!state_) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_over = true;
  }
  state_->over.notify_all();
  state_->thread.join();
}

}  // namespace ringtrain
