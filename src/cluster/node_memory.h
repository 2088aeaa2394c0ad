// Memory that the ranks of a node share.
#pragma once

#include <cstddef>
#include <memory>

#include "base/shared_memory.h"
#include "cluster/rank_group.h"

namespace ringtrain {

// Returns `bytes` bytes of zeros. The first rank of each node makes them, and the group's other ranks on that node map
// them. The size is limited by the node's memory, not by /dev/shm. A rank that cannot map them gets memory of its own,
// and the node's first rank warns. Collective over the group. Throws Error if the system refuses the memory.
std::shared_ptr<SharedMemory> node_memory(const RankGroup& group, std::size_t bytes);

}  // namespace ringtrain
