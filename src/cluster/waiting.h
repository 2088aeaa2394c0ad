// What a rank does between two looks at an unfinished collective.
#pragma once

#include <sched.h>
#include <time.h>

#include <atomic>

namespace ringtrain {

// Set once by Session: more ranks than CPUs here, so spinning would take time from the rank that is waited for.
inline std::atomic<bool> node_is_oversubscribed{false};

// Spin for some microseconds, then offer the CPU at each try; sleep only on an oversubscribed node (a sleep takes about
// 60 us with the kernel's timer slack).
class Waiter {
 public:
  void pause() {
    ++tries_;
    const bool crowded = node_is_oversubscribed.load(std::memory_order_relaxed);
    if (!crowded && tries_ < kSpins) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    } else if (!crowded || tries_ < kYields) {
      sched_yield();
    } else {
      const timespec moment{0, 10'000};
      nanosleep(&moment, nullptr);
    }
  }

 private:
  static constexpr int kSpins = 100, kYields = 1000;
  int tries_ = 0;
};

}  // namespace ringtrain
