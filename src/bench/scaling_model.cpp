#include "bench/scaling_model.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace ringtrain {

namespace {

// Returns the messages of one of the sample's sums, which go around a ring.
SumMessages messages(const SumSample& s) {
  return sum_messages(SumAlgorithm::ring, {.ranks = s.ranks}, static_cast<double>(s.bytes)).front();
}

double seconds_of(const Link& link, const SumSample& s) {
  const SumCost cost = sum_cost(SumAlgorithm::ring, {.ranks = s.ranks}, {link, link}, static_cast<double>(s.bytes));
  return cost.alone() + (s.sums - 1) * cost.occupancy();
}

// Solves seconds = a alpha + b beta by least squares. Every equation is divided by its seconds and multiplied by its
// weight.
Link solve(const std::vector<SumSample>& samples, const std::vector<double>& weights) {
  double aa = 0, ab = 0, bb = 0, at = 0, bt = 0;  // the normal equations
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const SumSample& s = samples[i];
    const SumMessages m = messages(s);
    const double a = m.count / s.seconds, b = m.count * m.bytes / s.seconds;
    aa += weights[i] * a * a, ab += weights[i] * a * b, bb += weights[i] * b * b;
    at += weights[i] * a, bt += weights[i] * b;
  }
  const double determinant = aa * bb - ab * ab;
  if (determinant <= 1e-12 * aa * bb) return {0, bb > 0 ? bt / bb : 0};  // one size only
  const double alpha = (at * bb - bt * ab) / determinant, beta = (bt * aa - at * ab) / determinant;
  if (alpha < 0) return {0, bt / bb};
  if (beta < 0) return {at / aa, 0};
  return {alpha, beta};
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Link fit_link(std::span<const SumSample> samples) {
  std::vector<SumSample> single, several;
  for (const SumSample& s : samples)
    if (s.ranks > 1) (s.sums > 1 ? several : single).push_back(s);

  // Outliers get a smaller weight (Huber 1964), because measurements on a shared network often have some.
  std::vector<double> weights(single.size(), 1.0), off(single.size());
  Link link;
  for (int iteration = 0; iteration < 20; ++iteration) {
    link = solve(single, weights);
    for (std::size_t i = 0; i < single.size(); ++i)
      off[i] = std::abs(1 - seconds_of(link, single[i]) / single[i].seconds);
    const double bound = std::max(1.5 * median(off), 1e-9);
    for (std::size_t i = 0; i < single.size(); ++i) weights[i] = bound / std::max(off[i], bound);
  }
  link.error = median(off);

  std::vector<double> gaps;
  for (const SumSample& s : several) {
    const double without = seconds_of({link.alpha, link.beta, 0}, s);
    gaps.push_back(std::clamp((s.seconds - without) / ((s.sums - 1) * messages(s).count), 0.0, link.alpha));
  }
  link.gap = gaps.empty() ? link.alpha : median(gaps);
  return link;
}

namespace {

// A rank alone on its node sends over the network only.
SumLinks links_of(const Cluster& c) {
  return {c.shape.most_on_node > 1 ? c.links.node : c.links.network, c.links.network};
}

// Returns when the first `share` of the gradient is final, as a share of the backward pass.
double ready_at(std::span<const WatermarkPoint> watermark, double share) {
  if (watermark.empty()) return share;
  for (const WatermarkPoint& point : watermark)
    if (point.share >= share - 1e-12) return point.time;
  return 1;
}

// Returns the time of the sum of a step's counters, which costs latency only.
double counters_seconds(const Cluster& c) {
  return sum_cost(SumAlgorithm::halving, c.shape, links_of(c), 0).latency;
}

// Returns the time from the start of the last backward pass to the end of the last sum.
double backward_and_sums(const StepWork& work, const Cluster& cluster) {
  if (cluster.shape.ranks == 1) return work.backward;
  const double rate = 1 - work.busy;  // speed of computation while the channel is occupied
  double now = 0, computed = 0, channel_free = 0, last_end = 0;
  const auto compute_until = [&](double target) {
    const double gained = std::min(target - computed, std::max(0.0, channel_free - now) * rate);
    if (computed + gained >= target) {
      if (rate > 0) now += gained / rate;
    } else {
      now = std::max(now, channel_free) + target - computed - gained;
    }
    computed = target;
  };
  const auto total = static_cast<double>(work.elements);
  for (std::int64_t begin = 0; begin < work.elements; begin += work.bucket_elements) {
    const std::int64_t end = std::min(begin + work.bucket_elements, work.elements);
    compute_until(work.backward * ready_at(work.watermark, static_cast<double>(end) / total));
    const SumCost cost = sum_cost(cluster, static_cast<double>(end - begin) * work.element_bytes);
    const double start = std::max(now, channel_free);
    channel_free = start + cost.occupancy();
    last_end = std::max(last_end, start + cost.alone());
  }
  compute_until(work.backward);
  return std::max(last_end, now) + counters_seconds(cluster);
}

}  // namespace

SumCost sum_cost(const Cluster& cluster, double bytes) {
  return sum_cost(cluster.algorithm, cluster.shape, links_of(cluster), bytes);
}

StepTime step_time(const StepWork& work, const Cluster& cluster) {
  StepTime t;
  t.compute = static_cast<double>(work.accumulation) * (work.forward + work.backward) + work.update;
  t.exposed = backward_and_sums(work, cluster) - work.backward + work.unexplained;
  // Measurements of a busy machine may contradict each other. A negative difference takes away at most half of the
  // computation.
  if (t.exposed < 0) t.compute = std::max(t.compute / 2, t.compute + std::exchange(t.exposed, 0));
  t.input = std::max({0.0, work.input_wait, work.input - t.compute - t.exposed});
  return t;
}

double fit_busy(StepWork work, const Cluster& cluster, double measured_seconds) {
  double low = 0, high = 1;
  for (int i = 0; i < 50; ++i) {
    work.busy = (low + high) / 2;
    (step_time(work, cluster).total() < measured_seconds ? low : high) = work.busy;
  }
  return (low + high) / 2;
}

PassTime pass_at(std::span<const PassTime> measured, double micro_batch) {
  const PassTime& largest = measured.back();
  const auto proportional = [&](const PassTime& p) {
    const double k = micro_batch / p.micro_batch;
    return PassTime{micro_batch, k * p.forward, k * p.backward};
  };
  if (measured.size() == 1 || micro_batch >= largest.micro_batch) return proportional(largest);
  std::size_t i = 1;
  while (measured[i].micro_batch < micro_batch) ++i;
  const PassTime &a = measured[i - 1], &b = measured[i];
  const double x = (micro_batch - a.micro_batch) / (b.micro_batch - a.micro_batch);
  const PassTime on_line = {micro_batch, a.forward + x * (b.forward - a.forward),
                            a.backward + x * (b.backward - a.backward)};
  if (x >= 0) return on_line;
  // A line that reaches zero above zero samples would make small passes cheaper per sample, which is not plausible.
  const PassTime least = proportional(a);
  return {micro_batch, std::clamp(on_line.forward, std::min(least.forward, a.forward), a.forward),
          std::clamp(on_line.backward, std::min(least.backward, a.backward), a.backward)};
}

double crowding(int ranks_on_node, int threads, int cores) {
  return std::max(1.0, static_cast<double>(ranks_on_node) * threads / std::max(1, cores));
}

Link scaled(Link link, double factor) {
  link.alpha *= factor, link.beta *= factor, link.gap *= factor;
  return link;
}

Link CoreSharing::slower(Link link, double crowding) const {
  link = scaled(link, crowding);
  link.alpha += (crowding - 1) * message_wait;
  return link;
}

double fit_message_wait(const StepWork& work, const Cluster& cluster, double crowding, double measured_seconds) {
  if (crowding <= 1) return 0;
  double low = 0, high = measured_seconds;
  for (int i = 0; i < 50; ++i) {
    const CoreSharing core_sharing = {0, (low + high) / 2};
    const Cluster slower = {
        cluster.shape,
        {core_sharing.slower(cluster.links.node, crowding), core_sharing.slower(cluster.links.network, crowding)},
        cluster.algorithm};
    (step_time(work, slower).total() < measured_seconds ? low : high) = core_sharing.message_wait;
  }
  return (low + high) / 2;
}

double full_node_slowdown(double at_full, int ranks_on_node, int alone, int full) {
  if (full <= alone) return 1;
  const double x = static_cast<double>(ranks_on_node - alone) / (full - alone);
  return 1 + std::clamp(x, 0.0, 1.0) * (at_full - 1);
}

StepRange step_range(const StepWork& work, const Cluster& cluster, const Uncertainty& uncertainty) {
  const auto seconds = [&](bool slower) {
    const double compute = slower ? 1 + uncertainty.compute : 1 / (1 + uncertainty.compute);
    const double sums = slower ? 1 + uncertainty.sums : 1 / (1 + uncertainty.sums);
    StepWork w = work;
    w.forward *= compute, w.backward *= compute, w.update *= compute;
    w.input *= compute, w.input_wait *= compute;
    Cluster c = cluster;
    c.links = {scaled(c.links.node, sums), scaled(c.links.network, sums)};
    return step_time(w, c);
  };
  const StepTime low = seconds(false), high = seconds(true);
  const double straggler = uncertainty.jitter * std::sqrt(2 * std::log(static_cast<double>(cluster.shape.ranks)));
  return {low.total() / (1 + uncertainty.model), (high.total() + straggler * high.compute) * (1 + uncertainty.model)};
}

}  // namespace ringtrain
