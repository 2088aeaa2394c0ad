// Formulas for the time of a training step on any number of ranks. Their inputs are measurements of `ringtrain bench`
// on a few ranks. The functions use no clock and no files.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cluster/sum_algorithms.h"

namespace ringtrain {

double median(std::vector<double> values);  // 0 if there are none

// `sums` all-reduces of `bytes` bytes each were started together and were finished after `seconds`.
struct SumSample {
  int ranks = 0;
  std::int64_t bytes = 0;
  double seconds = 0;
  int sums = 1;
};

// Fits the link to the cost of a ring by least squares of the relative error. Outliers weigh less, and no result is
// negative. Without samples of several sums at once, the gap is alpha.
Link fit_link(std::span<const SumSample> samples);

struct Cluster {
  NodeShape shape;
  SumLinks links;  // `network` is between nodes with one rank each. If every node has one rank, `node` is not used.
  SumAlgorithm algorithm = SumAlgorithm::ring;
};
// Returns the cost of an all-reduce over all ranks.
SumCost sum_cost(const Cluster& cluster, double bytes);

// After the share `time` of the backward pass, the first `share` of the gradient is final.
struct WatermarkPoint {
  double time = 0, share = 0;
};

// The work of one rank in a step. The watermark says which share of the gradient is final at which time of the backward
// pass. It is a step function. Without points, the share grows evenly.
struct StepWork {
  double forward = 0, backward = 0;  // seconds per pass, without communication
  double update = 0;                 // seconds
  double input = 0;       // seconds in which the loader prepares this rank's share of a step, while the rank computes
  double input_wait = 0;  // measured seconds of waiting for such a share
  std::int64_t accumulation = 1;
  std::int64_t elements = 0, bucket_elements = 1;
  double element_bytes = 4;
  double busy = 0;         // share of a sum's time that the computing core spends on it: 0 on a GPU, up to 1 on a CPU
  double unexplained = 0;  // seconds by which measured steps took longer than all of this explains; may be negative
  std::vector<WatermarkPoint> watermark;
};

struct StepTime {
  double compute = 0;  // seconds of passes and update
  double exposed = 0;  // seconds that the sums add, together with StepWork::unexplained
  double input = 0;    // seconds that waiting for input adds
  double total() const { return compute + exposed + input; }
};

// Returns the time of a step. The sums of the buckets share one channel to the other ranks. A sum starts when its
// bucket is final and the channel is free. While the channel is occupied, the rank computes with 1 - busy times its
// usual speed.
StepTime step_time(const StepWork& work, const Cluster& cluster);

// Returns the `busy` for which step_time() gives `measured_seconds`, or the nearer one of 0 and 1 if none does.
double fit_busy(StepWork work, const Cluster& cluster, double measured_seconds);

struct PassTime {
  double micro_batch = 0, forward = 0, backward = 0;
};
// Interpolates linearly between measured sizes. Below the smallest size it takes the line through the two smallest
// ones, but at least the proportional time and at most the time of the smallest size. Above the largest size, and with
// one entry, the time is proportional to the size. `measured` has at least one entry, in ascending order.
PassTime pass_at(std::span<const PassTime> measured, double micro_batch);

// Returns the threads per core of a node, at least 1.
double crowding(int ranks_on_node, int threads, int cores);

// Threads that share a core take turns. With c threads a pass takes c times as long, and a little more: the other
// threads have replaced the data in the caches, and a message may arrive while its rank is not running. The costs below
// are for each thread after the first.
struct CoreSharing {
  double slowdown = 0;      // relative slowdown of computation
  double message_wait = 0;  // seconds
  double slower(double crowding) const { return crowding * (1 + (crowding - 1) * slowdown); }
  Link slower(Link link, double crowding) const;
};

Link scaled(Link link, double factor);  // multiplies the times, not the error

// Returns the message_wait for which step_time() gives `measured_seconds`, at least 0. `work` contains the slowdown by
// `crowding` threads per core. The cluster's links are those of ranks with a core each.
double fit_message_wait(const StepWork& work, const Cluster& cluster, double crowding, double measured_seconds);

// Returns the factor by which passes take longer if `ranks_on_node` ranks compute on a node, because they share memory
// bandwidth, caches and clock frequency. The factor is 1 for `alone` ranks, `at_full` for `full` ranks, and linear in
// between.
double full_node_slowdown(double at_full, int ranks_on_node, int alone, int full);

// Errors that a prediction may have.
struct Uncertainty {
  double compute = 0, sums = 0;  // relative errors of measured passes and of fitted links
  double model = 0;              // relative error of predicted steps that were also measured
  double jitter = 0;             // relative standard deviation of the step of one rank
};
struct StepRange {
  double low = 0, high = 0;  // seconds
};
// Returns the range when all errors point in the same direction. The slowest of p ranks is later by jitter sqrt(2 ln
// p), an upper bound of the expected maximum of p normal variables.
StepRange step_range(const StepWork& work, const Cluster& cluster, const Uncertainty& uncertainty);

}  // namespace ringtrain
