#include "run/rank_checks.h"

#include "base/error.h"

namespace ringtrain {

void check_ranks(const Experiment& experiment, const BatchPlan& batch, const Backend& backend) {
  if (batch.span > 1 && backend.on_device())
    throw Error(cat(batch.ranks, " ranks would share the virtual workers of batch.worker ", batch.worker, ", ",
                    batch.span, " ranks each, but batch norm's sums over ranks are made on CPUs only"),
                cat("Numbers of GPUs that divide the ", batch.workers,
                    " workers: ", nearest_divisors(batch.workers, batch.ranks), "; or machine.device=cpu."));
  const std::int64_t slow = experiment.test.slow_rank;
  if (slow >= batch.ranks)
    throw Error(cat("test.slow_rank is ", slow, ", but the ranks are 0 to ", batch.ranks - 1),
                cat("Expected at most ", batch.ranks - 1, "; -1: no rank is slow."));
}

}  // namespace ringtrain
