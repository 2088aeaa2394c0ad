// The time of a training step on any number of ranks, from what `ringtrain bench` has measured on a few: pure
// arithmetic, no clock and no files.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ringtrain {

// A message of b bytes takes alpha + beta b (Hockney 1994). Of sums that are under way together only the first waits
// alpha for each message, those behind it take gap + beta b (the gap of LogP, Culler et al. 1993).
struct Link {
  double alpha = 0, beta = 0, gap = 0;  // seconds, seconds per byte, seconds; gap <= alpha
  double error = 0;                     // of the fit: median of |1 - fitted / measured|
};

// `sums` all-reduces of `bytes` each, started together, were done after `seconds`.
struct SumSample {
  int ranks = 0;
  std::int64_t bytes = 0;
  double seconds = 0;
  int sums = 1;
};

// The ring's cost by least squares of the relative error, outliers weighing less; nothing becomes negative. No samples
// of several sums: the gap is alpha, one sum after the other.
Link fit_link(std::span<const SumSample> samples);

// Of one all-reduce: what its messages wait, what its bytes take, and how long it keeps the next one from starting.
struct SumCost {
  double latency = 0, transfer = 0, gap = 0;  // seconds
  double alone() const { return latency + transfer; }
  double occupancy() const { return gap + transfer; }
};

// 2 (p - 1) messages of bytes / p (Patarasuk and Yuan 2009).
SumCost ring_cost(const Link& link, int ranks, double bytes);

// 2 log2(p) messages of half the bytes, a quarter and so on (Rabenseifner 2004); where p is no power of two, the bytes
// of the ranks beyond it travel twice more.
SumCost halving_cost(const Link& link, int ranks, double bytes);

enum class FlatSums { ring, halving, faster };  // of all ranks alike; faster: the faster one for these bytes

struct Cluster {
  int ranks = 1, ranks_per_node = 1;
  Link node, network;  // among the ranks of a node; between nodes, with one rank on each
  FlatSums sums = FlatSums::ring;
  int ranks_on_node() const { return ranks < ranks_per_node ? ranks : ranks_per_node; }
  int nodes() const { return (ranks + ranks_per_node - 1) / ranks_per_node; }
};

// flat: all ranks alike, every step as slow as its slowest link. hierarchical: reduce-scatter in the node, a sum over
// the nodes for each piece (they share the network that one rank per node was measured with), all-gather
// in the node.
enum class Topology { flat, hierarchical };
SumCost sum_cost(const Cluster& cluster, Topology topology, double bytes);

// After `time` (share of the backward pass) the first `share` of the gradient is final.
struct WatermarkPoint {
  double time = 0, share = 0;
};

// What one rank does in a step. The watermark rises in steps; without points it rises evenly.
struct StepWork {
  double forward = 0, backward = 0;  // seconds of one pass, without communication
  double update = 0;
  double input = 0;  // seconds that the loader takes for this rank's share of the step, beside the computing
  std::int64_t accumulation = 1;
  std::int64_t elements = 0, bucket_elements = 1;
  double element_bytes = 4;
  double busy = 0;  // share of a sum's occupancy that the computing core is kept busy: 0 on a GPU, up to 1 on a CPU
  std::vector<WatermarkPoint> watermark;
};

struct StepTime {
  double compute = 0;  // passes and update
  double exposed = 0;  // what the sums add to that
  double input = 0;    // what waiting for input adds to both
  double total() const { return compute + exposed + input; }
};

// The buckets of the last backward pass go into one channel in the order in which the watermark passes them, and
// computing goes on at the rate 1 - busy while the channel is occupied.
StepTime step_time(const StepWork& work, const Cluster& cluster, Topology topology);

// The `busy` with which step_time() gives `measured_seconds`; 0 or 1 where none does.
double fit_busy(StepWork work, const Cluster& cluster, Topology topology, double measured_seconds);

struct PassTime {
  double micro_batch = 0, forward = 0, backward = 0;
};
// Between two measured sizes on the line through them; below the smallest on the line through the two smallest, and
// above the largest in proportion. `measured`: at least one, ascending.
PassTime pass_at(std::span<const PassTime> measured, double micro_batch);

// Threads for each core of a node, where they are more than its cores; else 1.
double crowding(int ranks_on_node, int threads, int cores);

// What c threads on each core cost beyond c turns: caches that the others have filled with theirs, and ranks that get a
// message when it is not their turn. Both for each thread beyond the first.
struct CoreSharing {
  double slowdown = 0;      // of computing, relative
  double message_wait = 0;  // seconds
  double slower(double crowding) const { return crowding * (1 + (crowding - 1) * slowdown); }
  Link slower(Link link, double crowding) const;
};

Link scaled(Link link, double factor);  // its times, not its error

// The message_wait with which step_time() gives `measured_seconds`, at least 0. `work` is what `crowding` threads on
// each core make of it; the cluster's links are those of ranks that have a core each.
double fit_message_wait(const StepWork& work, const Cluster& cluster, Topology topology, double crowding,
                        double measured_seconds);

// Passes while the whole node computes, between `alone` ranks and the `full` node's: memory, caches and clock are
// shared by then. 1 .. `at_full`.
double full_node_slowdown(double at_full, int ranks_on_node, int alone, int full);

// How far a prediction may be off.
struct Uncertainty {
  double compute = 0, sums = 0;  // relative: of measured passes, of fitted links
  double model = 0;              // relative: of steps that were measured and predicted
  double jitter = 0;             // standard deviation of one rank's step, relative
};
struct StepRange {
  double low = 0, high = 0;  // seconds
};
// All errors at once in one direction, then the model's; the slowest of p ranks is later by jitter sqrt(2 ln p) (the
// largest of p normal variables, bound from above).
StepRange step_range(const StepWork& work, const Cluster& cluster, Topology topology, const Uncertainty& uncertainty);

}  // namespace ringtrain
