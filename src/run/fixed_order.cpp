#include "run/fixed_order.h"

#include <bit>

#include "base/error.h"

namespace ringtrain {
namespace {

bool is_power_of_two(std::int64_t number) {
  return number > 0 && std::has_single_bit(static_cast<std::uint64_t>(number));
}

}  // namespace

std::string powers_of_two(std::int64_t most) {
  std::string text = "1";
  for (std::int64_t power = 2; power <= most; power *= 2) text += cat(", ", power);
  return text;
}

void check_fixed_order(const RunPlan& plan) {
  if (!has_fixed_order(plan.experiment)) return;
  const BatchPlan& batch = plan.batch;
  for (const std::int64_t global : plan.batches) {
    const std::int64_t passes = global / batch.micro_batch;
    if (!is_power_of_two(passes))
      throw Error(cat("communication.order is fixed, but ", global, " samples of a step are ", passes, " passes of ",
                      batch.micro_batch, ", expected a power of two: they are added in a binary tree"),
                  "choose batch.global and batch.worker (or batch.micro) with a power of two between them, or "
                  "communication.order=any");
  }
  const std::int64_t most_ranks = plan.batches.front() / (batch.span > 1 ? batch.worker : batch.micro_batch);
  if (batch.span > 1 || !is_power_of_two(batch.ranks))
    throw Error(cat("communication.order is fixed, but there are ", batch.ranks,
                    " ranks, expected a power of two, each with "
                    "whole passes of its own"),
                cat("numbers of ranks that work: ", powers_of_two(most_ranks), "; or communication.order=any"));
}

std::int64_t waiting_nodes(const RunPlan& plan) {
  if (!has_fixed_order(plan.experiment)) return 0;
  return std::countr_zero(static_cast<std::uint64_t>(largest_batch(plan).accumulation));
}

}  // namespace ringtrain
