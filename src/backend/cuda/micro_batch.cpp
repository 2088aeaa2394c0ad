#include "backend/cuda/micro_batch.h"

#include <algorithm>

#include "backend/cuda/program_base.h"

namespace ringtrain::cuda {

std::int64_t least_bytes_per_sample(const Graph& graph, Precision precision) {
  const auto is_read_again = [](const Node& node) {
    return std::holds_alternative<Convolution>(node.operation) || std::holds_alternative<Lstm>(node.operation);
  };
  std::int64_t elements = 0;
  for (const Node& node : graph.nodes())
    if (is_read_again(node)) elements += graph.sequence() * node.output.size();
  return elements * bytes_of(type_of(precision));
}

std::int64_t largest_micro_batch(const PassDemand& demand, std::int64_t least_bytes, std::int64_t available_bytes,
                                 const std::function<std::int64_t(std::int64_t)>& program_bytes) {
  const std::int64_t unit = std::max<std::int64_t>(demand.group, 1);
  for (std::int64_t samples = demand.rows / unit * unit; samples > unit; samples -= unit)
    if (demand.rows % samples == 0 && samples * least_bytes <= available_bytes &&
        program_bytes(samples) <= available_bytes)
      return samples;
  return unit;
}

}  // namespace ringtrain::cuda
