#include "run/fixed_order.h"

#include <algorithm>
#include <bit>

#include "base/clock.h"
#include "base/error.h"
#include "base/table.h"
#include "run/course.h"

namespace ringtrain {
namespace {

bool is_power_of_two(std::int64_t number) {
  return number > 0 && std::has_single_bit(static_cast<std::uint64_t>(number));
}

// Returns the powers of two up to `most` as a text: "1, 2, 4, 8".
std::string powers_of_two(std::int64_t most) {
  std::string text = "1";
  for (std::int64_t power = 2; power <= most; power *= 2) text += cat(", ", power);
  return text;
}

// Measures the time that the fixed order adds to a rank's step. The rank copies the gradients of every pass but the
// last. For each copy it also adds two nodes of the tree.
double seconds_of_step(const RunPlan& plan, Backend& backend) {
  const std::int64_t elements = gradient_elements(plan, plan.parameters);
  const auto node = backend.make_vector(elements), gradients = backend.make_vector(elements);
  const Vector* const nodes[] = {node.get()};
  double least = 0;
  for (int trial = 0; trial < 3; ++trial) {
    const double begin = now_seconds();
    backend.copy(*gradients, *node);
    backend.add(nodes, {0, elements}, *gradients);
    float first = 0;
    backend.copy_to_host(*gradients, 0, std::span(&first, 1));  // waits for a device
    const double seconds = now_seconds() - begin;
    least = trial == 0 ? seconds : std::min(least, seconds);
  }
  return least * static_cast<double>(plan.batch.accumulation - 1);
}

// Returns the samples of a pass of the same run with communication.order=any.
std::int64_t micro_batch_in_any_order(const RunPlan& plan, Backend& backend) {
  Experiment experiment = plan.experiment;
  experiment.communication.order = "any";
  return make_run_plan(experiment, plan.train, plan.has_validation ? &plan.validation : nullptr,
                       static_cast<int>(plan.batch.ranks), backend, {}, plan.branch)
      .batch.micro_batch;
}

}  // namespace

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

std::string describe_fixed_order(const RunPlan& plan, Backend& backend, bool measures) {
  if (!has_fixed_order(plan.experiment)) return "";
  const BatchPlan& batch = plan.batch;
  const std::int64_t passes = batch.global / batch.micro_batch, additions = batch.accumulation - 1;
  const auto bytes = static_cast<double>(gradient_elements(plan, plan.parameters)) * sizeof(float);
  Table t;
  t.section("fixed order of sums");
  t.row("tree", cat(passes, " passes of ", batch.micro_batch, " samples; the same bits on ", powers_of_two(passes),
                    passes == 1 ? " rank" : " ranks"));
  t.row("memory of a rank", cat(waiting_nodes(plan), " x ", readable_bytes(bytes), " more"));
  std::string cost = cat(additions, " x an addition and a copy of ", readable_bytes(bytes), " in a step");
  if (additions > 0 && measures)
    cost += cat(": ", with_digits(1000 * seconds_of_step(plan, backend), 3), " ms (measured here, on one rank)");
  t.row("cost of a rank", cost);
  if (!measures) return t.str();
  if (const std::int64_t free = micro_batch_in_any_order(plan, backend); free > batch.micro_batch)
    t.row("not in this cost", cat("passes of ", batch.micro_batch, " samples instead of ", free,
                                  ", which are slower: ringtrain bench step measures passes"));
  return t.str();
}

}  // namespace ringtrain
