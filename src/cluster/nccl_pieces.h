// Collectives that NCCL itself does not have: the halves of a sum whose pieces differ in length (its own reduce-scatter
// and all-gather take equal ones only), and two messages that cross.
#pragma once

#include <cstdint>

#include "cluster/nccl_library.h"
#include "cluster/sum_schedule.h"

namespace ringtrain {

// The library, communicator and stream with which calls are made.
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

// The messages of a step of a schedule, at the same time: of `values`, and to `received`.
NcclResult exchange(const NcclStream& to, const SumStep& step, const float* values, float* received);

}  // namespace ringtrain
