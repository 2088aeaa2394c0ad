#include "run/energy.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/machine_share.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

std::string line_of(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// intel-rapl:0 is a package and intel-rapl:0:2 is a part of it. intel-rapl-mmio counts the same packages again.
bool is_zone(const std::string& name, std::ptrdiff_t colons) {
  return name.starts_with("intel-rapl:") && std::count(name.begin(), name.end(), ':') == colons;
}

std::vector<std::string> zones_in(const std::string& folder, std::ptrdiff_t colons) {
  std::vector<std::string> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (is_zone(entry.path().filename().string(), colons)) found.push_back(entry.path().string());
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

EnergyMeter::EnergyMeter(const std::string& folder) {
  for (const std::string& zone : zones_in(folder, 1)) {
    const std::string name = line_of(zone + "/name");
    if (!name.starts_with("package")) continue;
    add(zone, name);
    for (const std::string& part : zones_in(zone, 2))
      if (line_of(part + "/name") == "dram") add(part, name + " dram");
  }
  if (counters_.empty()) return;
  ticker_.start("reads the counters of energy", 30, [this](double) {
    const std::lock_guard lock(mutex_);
    read_all();
  });
}

void EnergyMeter::add(const std::string& zone, const std::string& part) {
  const std::string path = zone + "/energy_uj";
  const std::optional<std::int64_t> now = number_in(path), range = number_in(zone + "/max_energy_range_uj");
  if (now) counters_.push_back({part, path, range.value_or(0), *now});
}

void EnergyMeter::read_all() {
  for (Counter& counter : counters_) {
    const std::optional<std::int64_t> now = number_in(counter.path);
    if (!now) continue;
    const std::int64_t drawn = *now - counter.last;
    counter.total += static_cast<double>(drawn >= 0 ? drawn : drawn + counter.range);
    counter.last = *now;
  }
}

std::map<std::string, double> EnergyMeter::joules() {
  const std::lock_guard lock(mutex_);
  read_all();
  std::map<std::string, double> found;
  for (const Counter& counter : counters_) found[counter.part] += counter.total / 1e6;
  return found;
}

}  // namespace ringtrain
