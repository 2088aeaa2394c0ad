// Collectives that NCCL does not have: the halves of a sum whose pieces differ in length (NCCL's reduce-scatter and
// all-gather take only equal ones), and two messages in opposite directions.
#pragma once

#include <cstdint>

#include "cluster/nccl_library.h"
#include "cluster/sum_schedule.h"

namespace ringtrain {

// The library, the communicator and the stream for calls.
struct NcclStream {
  const NcclApi& api;
  NcclComm* comm;
  void* stream;  // a cudaStream_t
  int rank, ranks;
};

// The halves of a sum (Communicator::start_reduce_scatter(), start_all_gather()), in place. `values` [count] are cut
// into pieces of `piece` elements. The last pieces may be shorter or empty. Equal pieces take one call of NCCL. Other
// pieces take a group of calls, one for each piece.
NcclResult reduce_pieces(const NcclStream& to, void* values, std::int64_t count, std::int64_t piece, NcclType type);
NcclResult gather_pieces(const NcclStream& to, float* values, std::int64_t count, std::int64_t piece);

// Sends and receives the messages of one step of a schedule at the same time. It sends the part `step.sent` of `values`
// and writes what arrives to `received`.
NcclResult exchange(const NcclStream& to, const SumStep& step, const float* values, float* received);

}  // namespace ringtrain
