#include "backend/cuda/micro_batch.h"

#include <algorithm>

#include "backend/cuda/program_base.h"

namespace ringtrain::cuda {

std::int64_t least_bytes_per_sample(const Graph& graph, Precision precision) {
  std::int64_t elements = 0;
  for (const Node& node : graph.nodes())
    if (std::holds_alternative<Convolution>(node.operation) || std::holds_alternative<Lstm>(node.operation))
      elements += graph.sequence() * node.output.size();
  return elements * bytes_of(type_of(precision));
}

std::int64_t largest_micro_batch(std::int64_t unit, std::int64_t most, std::int64_t budget,
                                 const std::function<std::int64_t(std::int64_t micro_batch)>& bytes) {
  // In units. Memory is nearly a straight line of the micro-batch: the line through the last two that were asked says
  // where to look next.
  std::int64_t fits = 1, too_large = most / unit + 1;
  std::int64_t at_fits = bytes(unit);
  if (at_fits > budget) return unit;
  std::int64_t next = std::min<std::int64_t>(2, too_large - 1);
  while (too_large - fits > 1) {
    next = std::clamp(next, fits + 1, too_large - 1);
    const std::int64_t at_next = bytes(next * unit);
    const std::int64_t slope = std::max<std::int64_t>(1, (at_next - at_fits) / (next - fits));
    if (at_next <= budget) {
      fits = next;
      at_fits = at_next;
    } else {
      too_large = next;
    }
    next = fits + (budget - at_fits) / slope;
  }
  return fits * unit;
}

}  // namespace ringtrain::cuda
