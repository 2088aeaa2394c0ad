#include "parallel/owners.h"

#include <algorithm>

#include "base/error.h"
#include "base/rounding.h"

namespace ringtrain {
namespace {

constexpr std::int64_t alignment = 64;  // in elements: whole cache lines, and a good alignment for GPU kernels

std::int64_t part_of(std::int64_t elements, std::int64_t parts) {
  return round_up(divide_up(elements, parts), alignment);
}

void append_pieces(std::vector<OwnedRange>& all, ElementRange range, std::int64_t piece) {
  for (int rank = 0; range.begin < range.end; ++rank, range.begin += piece)
    all.push_back({{range.begin, std::min(range.end, range.begin + piece)}, rank});
}

}  // namespace

std::int64_t shard_piece(std::int64_t bucket_elements, int ranks) {
  return part_of(bucket_elements, ranks);
}

std::vector<OwnedRange> owners(const ParallelConfig& parallel, std::int64_t trained, std::int64_t bucket_elements,
                               int ranks) {
  std::vector<OwnedRange> all;
  if (servers_work(parallel)) append_pieces(all, {0, trained}, part_of(trained, parallel.servers));
  if (parallel.kind == "ring" && parallel.shard_state)
    for (std::int64_t begin = 0; begin < trained; begin += bucket_elements) {
      const ElementRange bucket{begin, std::min(begin + bucket_elements, trained)};
      append_pieces(all, bucket, shard_piece(bucket.end - bucket.begin, ranks));
    }
  return all;
}

ElementRange served_range(std::int64_t trained, int range, int ranges) {
  return {trained * range / ranges, trained * (range + 1) / ranges};
}

void check_servers(const ParallelConfig& parallel, int ranks, std::int64_t trained) {
  if (servers_work(parallel) && parallel.servers > ranks)
    throw Error(cat("parallel.servers is ", parallel.servers, ", but there ", ranks == 1 ? "is " : "are ", ranks,
                    ranks == 1 ? " rank" : " ranks", ", expected at most as many servers as ranks"),
                cat("lower parallel.servers, or start ", parallel.servers, " ranks"));
  if (parallel.servers > trained)
    throw Error(cat("parallel.servers is ", parallel.servers, ", but the model has ", trained,
                    " weights, expected at most as many servers as weights"),
                "lower parallel.servers");
}

std::optional<std::vector<ElementRange>> owned_by(int rank, const std::vector<OwnedRange>& owners) {
  if (owners.empty()) return std::nullopt;
  std::vector<ElementRange> own;
  for (const OwnedRange& range : owners)
    if (range.rank == rank) own.push_back(range.elements);
  return own;
}

}  // namespace ringtrain
