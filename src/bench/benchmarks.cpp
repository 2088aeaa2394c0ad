#include "bench/benchmarks.h"

#include <algorithm>
#include <span>

#include "base/clock.h"

namespace ringtrain {

std::size_t BenchContext::host_of(std::size_t rank) const {
  return static_cast<std::size_t>(std::ranges::find(hosts, session.hosts()[rank]) - hosts.begin());
}

double Runs::slowest() const {
  if (of_rank.empty()) return 0;
  std::vector<double> slowest = of_rank.front();
  for (const auto& times : of_rank)
    for (std::size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], times[i]);
  return median(slowest);
}

double Runs::rank_median(std::size_t rank) const {
  return median(of_rank.at(rank));
}

double Runs::jitter() const {
  std::vector<double> each;
  for (std::size_t r = 0; r < of_rank.size(); ++r) {
    // In a normal distribution, the middle half of the values is 1.35 standard deviations wide. A single interruption
    // does not change the width of the middle half.
    std::vector<double> sorted = of_rank[r];
    if (sorted.size() < 4) continue;
    std::sort(sorted.begin(), sorted.end());
    const double width = sorted[sorted.size() * 3 / 4] - sorted[sorted.size() / 4];
    each.push_back(width / 1.35 / rank_median(r));
  }
  return median(each);
}

Runs timed_runs(Communicator& host, double seconds, int most, TooSlow too_slow, const std::function<void()>& work) {
  const auto run = [&] {
    host.barrier();
    const double begin = now_seconds();
    work();
    return now_seconds() - begin;
  };
  host.barrier();
  run();
  double estimate = run();
  host.sum(std::span(&estimate, 1));
  estimate /= host.size();
  const int fits = static_cast<int>(std::min<double>(most, seconds / std::max(estimate, 1e-9)));
  const int count = fits < 1 && too_slow == TooSlow::give_up ? 0 : std::max(5, fits);

  std::vector<double> mine(static_cast<std::size_t>(count)), all;
  for (double& t : mine) t = run();
  if (host.rank() == 0) all.resize(mine.size() * static_cast<std::size_t>(host.size()));
  host.gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), 0);
  Runs runs;
  if (host.rank() != 0 || count == 0) return runs;
  for (std::size_t r = 0; r < static_cast<std::size_t>(host.size()); ++r) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(r * mine.size());
    runs.of_rank.emplace_back(first, first + count);
  }
  return runs;
}

std::vector<double> by_host(const BenchContext& context, const std::vector<double>& of_rank, bool largest) {
  std::vector<double> values(context.hosts.size());
  std::vector<bool> seen(values.size());
  for (std::size_t r = 0; r < of_rank.size(); ++r) {
    const std::size_t h = context.host_of(r);
    if (!seen[h] || (of_rank[r] > values[h]) == largest) values[h] = of_rank[r];
    seen[h] = true;
  }
  return values;
}

RunPlan compiled_plan(const BenchContext& context, const DatasetIndex& train) {
  Backend& backend = *context.machine.backend;
  RunPlan plan;
  context.machine.agree_on_fusions([&] {
    plan = make_run_plan(context.experiment, train, nullptr, context.machine.host->size(), backend);
    backend.compile(plan.graph, plan.batch.micro_batch, plan.precision, PassMode::training, plan.norm_group);
  });
  return plan;
}

}  // namespace ringtrain
