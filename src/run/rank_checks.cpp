#include "run/rank_checks.h"

#include <algorithm>

#include "base/error.h"

namespace ringtrain {

void check_ranks(const Experiment& experiment, const BatchPlan& batch, int ranks, bool has_servers,
                 std::int64_t stages) {
  if (batch.span > 1 && has_servers)
    throw Error(cat(batch.ranks, " workers of parallel.kind: server would share the virtual workers of batch.worker ",
                    batch.worker, ", ", batch.span,
                    " ranks for each, but a worker that is late or dropped would leave an incomplete group"),
                cat("Numbers of workers that divide the ", batch.workers,
                    " virtual ones: ", nearest_divisors(batch.workers, batch.ranks), "; or parallel.kind=ring."));
  if (batch.span > 1 && stages > 1)
    throw Error(cat(batch.ranks, " replicas of a pipeline would share the virtual workers of batch.worker ",
                    batch.worker, ", ", batch.span, " replicas for each, but a replica computes whole workers"),
                cat("Numbers of replicas that divide the ", batch.workers,
                    " virtual workers: ", nearest_divisors(batch.workers, batch.ranks), "; or parallel.kind=ring."));
  const std::int64_t slow = experiment.test.slow_rank;
  if (slow >= ranks)
    throw Error(cat("test.slow_rank is ", slow, ", but the ranks are 0 to ", ranks - 1),
                cat("Expected at most ", ranks - 1, "; -1: no rank is slow."));
  if (const std::int64_t flips = experiment.test.flip_bit_rank; flips >= ranks)
    throw Error(cat("test.flip_bit_rank is ", flips, ", but the ranks are 0 to ", ranks - 1),
                cat("Expected at most ", ranks - 1, "; -1: no bit flips."));
}

void check_flipped_tensor(const Experiment& experiment, const ParameterTable& parameters) {
  const std::string& name = experiment.test.flip_bit_in;
  if (name.empty()) return;
  const auto is_of = [&](const Parameter& p) {
    return name == "weights/" + p.name || (name.starts_with("optimizer/") && name.ends_with("/" + p.name));
  };
  if (std::ranges::any_of(parameters.all(), is_of)) return;
  const std::string example = parameters.all().front().name;
  throw Error(cat("test.flip_bit_in is ", name, ", expected a tensor like weights/", example, " or optimizer/momentum/",
                  example),
              "Tensors are named as in checkpoints.");
}

}  // namespace ringtrain
