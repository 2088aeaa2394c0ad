#include "config/batch_plan.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/rounding.h"
#include "config/batch_course.h"

namespace ringtrain {
namespace {

// Returns all divisors in increasing order. The number must be at least 1. O(sqrt number).
std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> small, large;
  for (std::int64_t d = 1; d <= number / d; ++d)
    if (number % d == 0) {
      small.push_back(d);
      if (d != number / d) large.push_back(number / d);
    }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

// Returns the ratio of the larger to the smaller of two positive numbers.
double ratio(std::int64_t a, std::int64_t b) {
  return static_cast<double>(std::max(a, b)) / static_cast<double>(std::min(a, b));
}

// Returns 1 and the eight of `numbers` that are nearest to `wanted`, as text: "1, 4, 16". `numbers` is in increasing
// order and not empty.
std::string nearest_of(std::vector<std::int64_t> numbers, std::int64_t wanted) {
  constexpr std::size_t most = 8;
  std::stable_sort(numbers.begin(), numbers.end(),
                   [wanted](std::int64_t a, std::int64_t b) { return ratio(a, wanted) < ratio(b, wanted); });
  numbers.resize(std::min(numbers.size(), most));
  std::sort(numbers.begin(), numbers.end());
  return cat(numbers.front() > 1 ? "1, " : "", joined(numbers));
}

// Returns the greatest common divisor of all batches of a run.
std::int64_t common_batch(const BatchConfig& batch) {
  std::int64_t all = 0;
  for (const std::int64_t b : batches_on_course(batch)) all = std::gcd(all, b);
  return all;
}

// Returns all numbers of ranks that can divide or share this number of workers of `worker` samples each.
std::vector<std::int64_t> possible_ranks(std::int64_t workers, std::int64_t worker) {
  std::vector<std::int64_t> all;
  for (const std::int64_t teams : divisors(workers))
    for (std::int64_t span = 1; worker % span == 0; span *= 2) all.push_back(teams * span);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

// Properties that the ranks' shares have in common for all batches of a run.
struct CommonRows {
  std::int64_t rows = 0;       // the greatest common divisor of the rows of a rank
  std::int64_t span = 1;       // ranks that share a worker
  std::string of_every_batch;  // " common", a word of messages; "" if the batch never changes
};

// Throws Error if a batch of the run cannot be divided among the ranks.
CommonRows common_rows(const BatchConfig& batch, std::int64_t ranks, bool whole_workers, std::int64_t small_batch) {
  const std::vector<std::int64_t> batches = batches_on_course(batch);
  const std::int64_t all = common_batch(batch);
  const std::int64_t workers = std::max<std::int64_t>(1, all / batch.worker);
  const std::int64_t span = whole_workers ? ranks_per_worker(batch, ranks) : 1;
  for (const std::int64_t b : batches) {
    const std::string global = b == batch.global ? cat("batch.global ", b) : cat("the batch of ", b);
    if (b % batch.worker != 0)
      throw Error(cat("batch.worker ", batch.worker, " does not divide ", global),
                  cat("Values of batch.worker that do: ", nearest_divisors(all, batch.worker), "."));
    if (span == 0)
      throw Error(cat(ranks, " ranks neither divide the ", b / batch.worker, " virtual workers (", global,
                      " / batch.worker ", batch.worker, ") nor can a power of two of ranks share each"),
                  cat("Numbers of ranks that can: ", nearest_of(possible_ranks(workers, batch.worker), ranks), "."));
    if (b / batch.worker % (ranks / span) != 0)
      throw Error(cat(ranks, " ranks do not divide the ", b / batch.worker, " virtual workers (", global,
                      " / batch.worker ", batch.worker, ")"),
                  cat("Numbers of ranks that do: ", nearest_divisors(workers, ranks), "."));
    if (small_batch > 0 && b / ranks % small_batch != 0)
      throw Error(
          cat("noise.small_batch ", small_batch, " does not divide the ", b / ranks, " rows of each of ", ranks,
              " ranks", b == batch.global ? "" : " at " + global),
          cat("Numbers of ranks that work: ", nearest_divisors(std::max<std::int64_t>(1, all / small_batch), ranks),
              "; noise.small_batch=0 measures what a rank does in one pass."));
  }
  return {all / ranks, span, batches.size() > 1 ? " common" : ""};
}

}  // namespace

std::int64_t ranks_per_worker(const BatchConfig& batch, std::int64_t ranks) {
  const std::int64_t workers = std::max<std::int64_t>(1, common_batch(batch) / batch.worker);
  for (std::int64_t span = 1; ranks % span == 0 && batch.worker % span == 0; span *= 2)
    if (workers % (ranks / span) == 0) return span;
  return 0;
}

std::int64_t dividing_ranks(const BatchConfig& batch, std::int64_t ranks) {
  const auto divide = [&](std::int64_t r) {
    return batch.global / batch.worker % r == 0 && (batch.micro == 0 || batch.global / r % batch.micro == 0);
  };
  while (ranks > 1 && !divide(ranks)) --ranks;
  return ranks;
}

BatchConfig evaluation_batch(BatchConfig batch, std::int64_t ranks, std::int64_t recorded_micro_batch) {
  if (dividing_ranks(batch, ranks) == ranks && batch.micro % batch.worker == 0) return batch;
  const std::int64_t share = divide_up(batch.global, ranks);
  if (batch.micro == 0) batch.micro = std::min(recorded_micro_batch > 0 ? recorded_micro_batch : batch.worker, share);
  const std::int64_t together = ranks * batch.micro;
  batch.worker = batch.micro;
  batch.global = round_up(batch.global, together);
  return batch;
}

std::string nearest_divisors(std::int64_t number, std::int64_t wanted) {
  return nearest_of(divisors(number), wanted);
}

BatchShares batch_shares(const BatchConfig& batch, std::int64_t ranks, bool whole_workers, std::int64_t small_batch) {
  if (batch.global < 1 || batch.worker < 1 || batch.micro < 0 || ranks < 1)
    throw Error(cat("batch.global ", batch.global, ", batch.worker ", batch.worker, ", batch.micro ", batch.micro,
                    " and ", ranks, " ranks: expected positive numbers (batch.micro may be 0)"));
  const CommonRows common = common_rows(batch, ranks, whole_workers, small_batch);

  // A micro-batch is a whole number of units. A unit is a sample, or a virtual worker if workers must stay whole. If
  // ranks share a worker, the micro-batch is one rank's part of it.
  const std::int64_t unit = whole_workers ? batch.worker / common.span : 1;
  const std::int64_t units = (small_batch > 0 ? small_batch : common.rows) / unit;
  if (common.span > 1) {
    if (batch.micro != 0 && batch.micro != unit)
      throw Error(cat("batch.micro is ", batch.micro, ", but ", common.span, " ranks share each virtual worker of ",
                      batch.worker, " samples, expected ", unit, ": a pass is a rank's part of one worker"),
                  cat("Set batch.micro=", unit, ", or 0."));
    if (small_batch % unit != 0)
      throw Error(cat("noise.small_batch is ", small_batch, ", expected a multiple of the ", unit,
                      " samples of a pass: ", common.span, " ranks share each virtual worker of ", batch.worker),
                  "noise.small_batch=0 measures what a rank does in one pass.");
  } else if (batch.micro != 0) {
    if (common.rows % batch.micro != 0)
      throw Error(cat("batch.micro ", batch.micro, " does not divide the ", common.rows, common.of_every_batch,
                      " rows of each of ", ranks, " ranks"),
                  cat("Values of batch.micro that do: ", nearest_divisors(common.rows, batch.micro),
                      "; 0 leaves the choice to the backend."));
    if (batch.micro % unit != 0)
      throw Error(cat("batch.micro ", batch.micro, " splits a virtual worker of ", batch.worker,
                      " samples, which a model with batch norm does not allow"),
                  cat("Values of batch.micro that work: ", batch.worker, " x one of ",
                      nearest_divisors(units, std::max<std::int64_t>(1, batch.micro / unit)), "."));
  }
  BatchShares shares{.global = batch.global,
                     .worker = batch.worker,
                     .ranks = ranks,
                     .span = common.span,
                     .small_batch = small_batch,
                     .stated = batch.micro,
                     .micro_batches = {unit}};
  if (common.span > 1) return shares;
  shares.micro_batches = divisors(units);
  for (std::int64_t& size : shares.micro_batches) size *= unit;
  return shares;
}

std::int64_t nearest_micro_batch(const BatchShares& shares, std::int64_t preferred) {
  if (preferred < 1) throw Error(cat("a preferred micro-batch of ", preferred, ": expected positive numbers"));
  const std::int64_t unit = shares.micro_batches.front(), wanted = std::max<std::int64_t>(1, preferred / unit);
  return *std::ranges::min_element(shares.micro_batches, {},
                                   [&](std::int64_t size) { return ratio(size / unit, wanted); });
}

BatchPlan batch_plan(const BatchShares& shares, std::int64_t micro_batch) {
  const BatchPlan plan{.worker = shares.worker,
                       .ranks = shares.ranks,
                       .span = shares.span,
                       .micro_batch = micro_batch,
                       .small_batch = shares.small_batch > 0 ? shares.small_batch : micro_batch};
  return resized(plan, shares.global);
}

BatchPlan batch_plan(const BatchConfig& batch, std::int64_t ranks, std::int64_t preferred_micro_batch,
                     bool whole_workers, std::int64_t small_batch) {
  const BatchShares shares = batch_shares(batch, ranks, whole_workers, small_batch);
  return batch_plan(shares, batch.micro > 0 ? batch.micro : nearest_micro_batch(shares, preferred_micro_batch));
}

BatchPlan resized(const BatchPlan& plan, std::int64_t batch) {
  BatchPlan p = plan;
  p.global = batch;
  p.workers = batch / p.worker;
  p.rows_per_rank = batch / p.ranks;
  p.accumulation = p.rows_per_rank / p.micro_batch;
  return p;
}

std::string to_string(const BatchPlan& plan) {
  const auto counted = [](std::int64_t count, const char* noun) {
    return cat(count, " ", noun, count == 1 ? "" : "s");
  };
  return cat(plan.global, " = ", counted(plan.workers, "worker"), " x ", plan.worker, " = ",
             counted(plan.ranks, "rank"), " x ", counted(plan.accumulation, "micro-step"), " x ", plan.micro_batch,
             plan.span > 1 ? cat(", ", plan.span, " ranks share a worker") : "");
}

}  // namespace ringtrain
