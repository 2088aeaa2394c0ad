#include "base/host_memory.h"

#include <fstream>
#include <string>

namespace ringtrain {

std::optional<HostMemory> host_memory() {
  HostMemory memory;
  std::ifstream file("/proc/meminfo");
  for (std::string name, rest; file >> name && std::getline(file, rest);) {
    if (name == "MemTotal:") memory.total = std::stoll(rest) << 10;
    if (name == "MemAvailable:") memory.available = std::stoll(rest) << 10;
  }
  if (memory.total == 0 || memory.available == 0) return std::nullopt;
  return memory;
}

}  // namespace ringtrain
