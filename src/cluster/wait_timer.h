// Measures how long the passes of a rank wait for messages from other ranks.
#pragma once

#include <functional>
#include <memory>

namespace ringtrain {

namespace cuda {
class Device;
}

class WaitTimer {
 public:
  virtual ~WaitTimer() = default;
  // Calls `wait` and measures how long it takes. In host memory this is the time in which the host waits. On a device,
  // `wait` only queues the wait, and the time is the one in which the compute stream waits.
  virtual void time(const std::function<void()>& wait) = 0;
  // Returns the seconds of all waits since the last call. On a device only those are counted that have ended; the
  // others are counted by the next call.
  virtual double take_seconds() = 0;
};

std::unique_ptr<WaitTimer> make_host_wait_timer();
// Records a pair of timed events around each wait in the compute stream. The first one happens when the work before the
// wait has ended, so the time between them is the time in which the stream is idle. `device` outlives the timer.
std::unique_ptr<WaitTimer> make_device_wait_timer(cuda::Device& device);

}  // namespace ringtrain
