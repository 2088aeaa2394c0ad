#include "base/clock.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/system_limits.h"

namespace ringtrain {

void Ticker::start(const std::string& purpose, double seconds, std::function<void(double passed)> work) {
  ends_ = false;
  thread_ = start_thread(purpose, [this, seconds, work = std::move(work)] {
    double last = now_seconds();
    std::unique_lock lock(mutex_);
    while (!ending_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return ends_; })) {
      const double now = now_seconds();
      work(std::min(now - last, std::max(1.0, 4 * seconds)));
      last = now;
    }
  });
}

void Ticker::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  ending_.notify_all();
  thread_.join();
}

}  // namespace ringtrain
