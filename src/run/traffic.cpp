#include "run/traffic.h"

#include <cmath>

#include "base/error.h"
#include "base/table.h"

namespace ringtrain {

std::string describe_traffic(const cuda::Traffic& traffic, std::int64_t micro_batch, std::int64_t rows_per_rank,
                             std::int64_t sites, std::int64_t timed) {
  const double forward = traffic.forward_bytes / static_cast<double>(micro_batch),
               backward = traffic.backward_bytes / static_cast<double>(micro_batch),
               weights = traffic.weights_bytes / static_cast<double>(rows_per_rank);
  const auto bytes = [](double value) { return with_thousands(std::llround(value)); };
  Table t;
  t.section(cat("memory traffic of one rank's GPU, bytes per sample, micro-batch ", micro_batch));
  t.row("forward", bytes(forward));
  t.row("backward", bytes(backward));
  t.row("weights' own copies", bytes(weights));
  t.row("total", bytes(forward + backward + weights));
  t.row("FLOPs", bytes(traffic.flops / static_cast<double>(micro_batch)));
  t.row("joined kernels", timed > 0 ? cat(timed, " of ", sites, " sites as they were timed, the others by fewest bytes")
                                    : cat(sites, " sites, nothing timed: the ways that move the fewest bytes"));
  return t.str();
}

}  // namespace ringtrain
