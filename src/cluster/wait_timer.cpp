#include "cluster/wait_timer.h"

#include <deque>
#include <utility>
#include <vector>

#include "backend/cuda/device/device.h"
#include "base/clock.h"

namespace ringtrain {
namespace {

class HostWaitTimer final : public WaitTimer {
 public:
  void time(const std::function<void()>& wait) override {
    const double begin = now_seconds();
    wait();
    seconds_ += now_seconds() - begin;
  }
  double take_seconds() override { return std::exchange(seconds_, 0); }

 private:
  double seconds_ = 0;
};

class DeviceWaitTimer final : public WaitTimer {
 public:
  explicit DeviceWaitTimer(cuda::Device& device) : device_(device) {}
  void time(const std::function<void()>& wait) override {
    if (free_.empty()) free_.push_back({device_.make_timed_event(), device_.make_timed_event()});
    const Wait own = free_.back();
    free_.pop_back();
    device_.record(own.begin, device_.compute_stream());
    wait();
    device_.record(own.end, device_.compute_stream());
    open_.push_back(own);
  }
  double take_seconds() override {
    double seconds = 0;
    for (; !open_.empty() && device_.done(open_.front().end); open_.pop_front()) {
      seconds += device_.seconds_between(open_.front().begin, open_.front().end);
      free_.push_back(open_.front());
    }
    return seconds;
  }

 private:
  struct Wait {
    cuda::Event begin, end;
  };
  cuda::Device& device_;
  std::deque<Wait> open_;  // in the order of the compute stream
  std::vector<Wait> free_;
};

}  // namespace

std::unique_ptr<WaitTimer> make_host_wait_timer() {
  return std::make_unique<HostWaitTimer>();
}

std::unique_ptr<WaitTimer> make_device_wait_timer(cuda::Device& device) {
  return std::make_unique<DeviceWaitTimer>(device);
}

}  // namespace ringtrain
