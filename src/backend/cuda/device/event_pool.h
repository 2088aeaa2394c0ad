// Events that are used again, because a device keeps all that it has made.
#pragma once

#include <initializer_list>
#include <vector>

#include "backend/cuda/device/device.h"

namespace ringtrain::cuda {

class EventPool {
 public:
  explicit EventPool(Device& device) : device_(device) {}

  // Returns an event that was put back, or makes one.
  Event take() {
    if (free_.empty()) return device_.make_event();
    const Event event = free_.back();
    free_.pop_back();
    return event;
  }
  // Nothing may wait for these events any more.
  void put_back(std::initializer_list<Event> events) { free_.insert(free_.end(), events.begin(), events.end()); }

 private:
  Device& device_;
  std::vector<Event> free_;
};

}  // namespace ringtrain::cuda
