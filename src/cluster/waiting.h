// The pauses of a rank between two tests of an unfinished collective.
#pragma once

#include <sched.h>
#include <time.h>

#include <atomic>

namespace ringtrain {

// True if this node has more ranks than CPUs. Spinning would then take time from the rank that is waited for. Session
// sets it at the start. SharedCores (bench/step.cpp) changes it while two ranks run on the same cores.
inline std::atomic<bool> node_is_oversubscribed{false};

// Spins for some microseconds, and then yields the CPU between tests. On an oversubscribed node it does not spin. It
// yields for a while and then sleeps. On other nodes it never sleeps, because a sleep takes about 60 us with the
// kernel's timer slack.
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
