#include "cluster/nccl_pieces.h"

#include <algorithm>

namespace ringtrain {
namespace {

bool fails(NcclResult result) {
  return result != NcclResult::success && result != NcclResult::in_progress;
}

// Calls `call` for each piece that is not empty, with the rank of the piece.
template <class Call>
NcclResult for_pieces(const NcclStream& to, std::int64_t count, std::int64_t piece, const Call& call) {
  if (const NcclResult started = to.api.group_start(); fails(started)) return started;
  NcclResult result = NcclResult::success;
  for (int rank = 0; rank * piece < count && !fails(result); ++rank)
    result = call(rank * piece, static_cast<std::size_t>(std::min(piece, count - rank * piece)), rank);
  const NcclResult ended = to.api.group_end();  // a group that was begun must end, even after an error
  return fails(result) ? result : ended;
}

}  // namespace

NcclResult reduce_pieces(const NcclStream& to, void* values, std::int64_t count, std::int64_t piece, NcclType type) {
  const auto at = [&](std::int64_t element) {
    return static_cast<char*>(values) + element * (type == NcclType::fp32 ? 4 : 2);
  };
  if (count == piece * to.ranks)
    return to.api.reduce_scatter(values, at(to.rank * piece), static_cast<std::size_t>(piece), type, NcclOperation::sum,
                                 to.comm, to.stream);
  return for_pieces(to, count, piece, [&](std::int64_t begin, std::size_t length, int rank) {
    return to.api.reduce(at(begin), at(begin), length, type, NcclOperation::sum, rank, to.comm, to.stream);
  });
}

NcclResult gather_pieces(const NcclStream& to, float* values, std::int64_t count, std::int64_t piece) {
  if (count == piece * to.ranks)
    return to.api.all_gather(values + to.rank * piece, values, static_cast<std::size_t>(piece), NcclType::fp32, to.comm,
                             to.stream);
  return for_pieces(to, count, piece, [&](std::int64_t begin, std::size_t length, int rank) {
    return to.api.broadcast(values + begin, values + begin, length, NcclType::fp32, rank, to.comm, to.stream);
  });
}

NcclResult exchange(const NcclStream& to, const SumStep& step, const float* values, float* received) {
  if (const NcclResult started = to.api.group_start(); fails(started)) return started;
  NcclResult result = NcclResult::success;
  if (step.sent.size() > 0)
    result = to.api.send(values + step.sent.begin, step.sent.size(), NcclType::fp32, step.to, to.comm, to.stream);
  if (step.received.size() > 0 && !fails(result))
    result = to.api.receive(received, step.received.size(), NcclType::fp32, step.from, to.comm, to.stream);
  const NcclResult ended = to.api.group_end();
  return fails(result) ? result : ended;
}

}  // namespace ringtrain
