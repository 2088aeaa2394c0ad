// Says which rank updates which elements of the flat vector if the ranks share the optimizer's work.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backend/vector_operations.h"
#include "config/experiment.h"

namespace ringtrain {

struct OwnedRange {
  ElementRange elements;
  int rank = 0;
};

// Returns the length of the pieces into which ranks divide a bucket (parallel.shard_state), a multiple of 64 elements.
// Rank r has the r-th piece. The last pieces may be shorter or empty.
std::int64_t shard_piece(std::int64_t bucket_elements, int ranks);

// Returns ranges that cover [0, trained) in ascending order. Empty if every rank updates everything. `bucket_elements`
// is the bucket size of the communication.
std::vector<OwnedRange> owners(const ParallelConfig& parallel, std::int64_t trained, std::int64_t bucket_elements,
                               int ranks);

// Returns the elements of range number `range`, if [0, trained) is divided into `ranges` ranges of equal size. This is
// for servers that have their own ranks.
ElementRange served_range(std::int64_t trained, int range, int ranges);

// Throws Error if there are more parameter servers than trained weights, or more servers that are workers too
// (servers_work()) than ranks.
void check_servers(const ParallelConfig& parallel, int ranks, std::int64_t trained);

// Returns the ranges of one rank, or nothing if every rank updates everything.
std::optional<std::vector<ElementRange>> owned_by(int rank, const std::vector<OwnedRange>& owners);

}  // namespace ringtrain
