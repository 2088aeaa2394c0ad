// Memory that the ranks of a node have in common.
#pragma once

#include <cstddef>
#include <memory>

#include "base/shared_memory.h"
#include "cluster/rank_group.h"

namespace ringtrain {

// `bytes` of zeros, made by the first rank of each node and mapped by the group's other ranks there; the node's memory,
// not /dev/shm, is its limit. A rank that cannot map it gets as much of its own, and the node's first rank warns.
// Collective over the group. Throws GroupFailed.
std::shared_ptr<SharedMemory> node_memory(const RankGroup& group, std::size_t bytes);

}  // namespace ringtrain
