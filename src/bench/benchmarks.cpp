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

std::vector<double> Runs::rank_medians() const {
  std::vector<double> medians;
  for (const auto& times : of_rank) medians.push_back(median(times));
  return medians;
}

double Runs::jitter() const {
  std::vector<double> each;
  for (std::vector<double> sorted : of_rank) {
    // In a normal distribution, the middle half of the values is 1.35 standard deviations wide. A single interruption
    // does not change the width of the middle half.
    if (sorted.size() < 4) continue;
    std::sort(sorted.begin(), sorted.end());
    const double width = sorted[sorted.size() * 3 / 4] - sorted[sorted.size() / 4];
    each.push_back(width / 1.35 / median(sorted));
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

std::vector<double> largest_by_host(const BenchContext& context, const std::vector<double>& of_rank) {
  std::vector<double> values(context.hosts.size());
  for (std::size_t r = 0; r < of_rank.size(); ++r) {
    double& value = values[context.host_of(r)];
    value = std::max(value, of_rank[r]);
  }
  return values;
}

std::int64_t steps_in(Communicator& host, double seconds, double seconds_per_step, std::int64_t least,
                      std::int64_t most) {
  const auto steps = static_cast<std::int64_t>(seconds / std::max(seconds_per_step, 1e-6));
  return of_rank_0(host, std::clamp(steps, least, most));
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
