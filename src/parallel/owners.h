// Which rank updates which elements of the flat vector, where ranks share the optimizer's work.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backend/range_norms.h"
#include "config/experiment.h"

namespace ringtrain {

struct OwnedRange {
  ElementRange elements;
  int rank = 0;
};

// Whether the servers are ranks that also work: synchronous ones, without backup workers.
bool servers_work(const ParallelConfig& parallel);

// Of a bucket of so many elements that p ranks share (parallel.shard_state): rank r has the r-th piece of this length,
// a multiple of 64 elements. The last pieces may be shorter or empty.
std::int64_t shard_piece(std::int64_t bucket_elements, int ranks);

// All of [0, trained), ascending; empty where every rank updates everything. `bucket_elements`: of the communication.
std::vector<OwnedRange> owners(const ParallelConfig& parallel, std::int64_t trained, std::int64_t bucket_elements,
                               int ranks);

// Throws Error where this many ranks cannot do what the experiment asks for.
void check_parallel(const Experiment& experiment, int ranks);

// What one of them has; none where every rank updates everything.
std::optional<std::vector<ElementRange>> owned_by(int rank, const std::vector<OwnedRange>& owners);

}  // namespace ringtrain
