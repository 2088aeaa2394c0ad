// Measures the energy that this node's processors and memory use while a run trains. The values come from RAPL, the
// energy counters of Intel's and AMD's processors, which Linux offers as files (powercap). On most systems only root
// can read these files. For other users nothing is recorded.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"

namespace ringtrain {

// An EnergyMeter counts from its construction on. The hardware counters wrap around to 0 after some minutes of full
// load, so a thread reads them every 30 seconds. Without readable counters there is no thread.
class EnergyMeter {
 public:
  explicit EnergyMeter(const std::string& folder = "/sys/class/powercap");
  EnergyMeter(const EnergyMeter&) = delete;
  EnergyMeter& operator=(const EnergyMeter&) = delete;

  // Returns the joules of each part: "package-0", and "package-0 dram" if memory is counted separately. Empty if
  // nothing can be read. Parts that a package contains (cores, graphics) or that contain it (the platform) are left
  // out, so the sum of the parts counts nothing twice.
  std::map<std::string, double> joules();

 private:
  struct Counter {
    std::string part, path;
    std::int64_t range = 0;  // value in microjoules at which the counter wraps around to 0
    std::int64_t last = 0;
    double total = 0;  // microjoules
  };
  void add(const std::string& zone, const std::string& part);
  void read_all();

  std::vector<Counter> counters_;
  std::mutex mutex_;  // of the counters
  Ticker ticker_;     // the last member, because its thread uses the others
};

}  // namespace ringtrain
