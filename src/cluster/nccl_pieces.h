// The halves of a sum by NCCL, whose own reduce-scatter and all-gather take pieces of equal length only.
#pragma once

#include <cstdint>

#include "cluster/nccl_library.h"

namespace ringtrain {

// Where calls go.
struct NcclStream {
  const NcclApi& api;
  NcclComm* comm;
  void* stream;  // a cudaStream_t
  int rank, ranks;
};

// `values` [count] are cut into pieces of `piece` elements, of which the last ones may be shorter or empty; in place.
// Equal pieces are one call of NCCL, others a group of calls, one for each piece.
NcclResult reduce_pieces(const NcclStream& to, void* values, std::int64_t count, std::int64_t piece, NcclType type);
NcclResult gather_pieces(const NcclStream& to, float* values, std::int64_t count, std::int64_t piece);

}  // namespace ringtrain
