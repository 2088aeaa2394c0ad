#include "backend/cuda/program/micro_batch.h"

#include <algorithm>

#include "backend/cuda/program/base.h"

namespace ringtrain::cuda {

std::int64_t least_bytes_per_sample(const Graph& graph, Precision precision) {
  if (graph.offloads()) return 0;  // the micro-batch decides how much is offloaded
  std::int64_t elements = 0;
  for (const Node& node : graph.nodes())
    if (!node.recomputed &&
        (std::holds_alternative<Convolution>(node.operation) || std::holds_alternative<Lstm>(node.operation)))
      elements += graph.sequence() * node.output.size();
  return elements * bytes_of(type_of(precision));
}

std::int64_t largest_micro_batch(const PassDemand& demand, std::int64_t room, std::int64_t least_bytes,
                                 const std::function<std::int64_t(std::int64_t)>& program_bytes) {
  const std::int64_t unit = std::max<std::int64_t>(1, demand.group), units = demand.rows / unit;
  for (std::int64_t parts = 1; parts < units; ++parts) {
    const std::int64_t samples = units / parts * unit;
    if (units % parts == 0 && samples * least_bytes <= room && program_bytes(samples) <= room) return samples;
  }
  return unit;
}

}  // namespace ringtrain::cuda
