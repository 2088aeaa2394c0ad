// Measures how long the passes of a rank wait for other ranks.
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
  // Calls `wait` and measures the wait. A host's timer measures how long the host waits. On a device, `wait` only
  // queues the wait, and a device's timer measures how long the compute stream waits.
  virtual void time(const std::function<void()>& wait) = 0;
  // Returns the seconds of all waits since the last call. A device's timer counts only waits that have ended. It leaves
  // the others to a later call.
  virtual double take_seconds() = 0;
};

std::unique_ptr<WaitTimer> make_host_wait_timer();
// Records a timed event before and after each wait in the compute stream. The first event happens when the work before
// the wait has ended. The stream is therefore idle between the two events. `device` outlives the timer.
std::unique_ptr<WaitTimer> make_device_wait_timer(cuda::Device& device);

}  // namespace ringtrain
