// Reads how much memory the machine has.
#pragma once

#include <cstdint>
#include <optional>

namespace ringtrain {

struct HostMemory {
  std::int64_t total = 0, available = 0;  // bytes; memory that the kernel can reclaim counts as available
};
// Returns nothing if the kernel does not say it.
std::optional<HostMemory> host_memory();

}  // namespace ringtrain
