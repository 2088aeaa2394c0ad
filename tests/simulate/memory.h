// Memory of simulated ranks. Values do not matter in a simulation, so all large vectors of all ranks are the same
// memory. Thousands of ranks then fit into the machine, and no rank has pages of its own to touch.
#pragma once

#include <cstddef>

namespace simulate {

constexpr std::size_t common_from = 256 << 10;  // bytes: smaller vectors have memory of their own

// The memory that all ranks share, filled with zeros at first. Throws std::bad_alloc for more than 1 GiB.
void* common_memory(std::size_t bytes);

}  // namespace simulate
