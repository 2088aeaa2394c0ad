// What the benchmarks share.
#pragma once

#include <functional>
#include <vector>

#include "bench/preflight.h"
#include "cluster/session.h"
#include "run/machine.h"

namespace ringtrain {

struct BenchContext {
  const Session& session;
  const Experiment& experiment;
  Machine& machine;
  int threads = 1;
  double seconds = 10;             // for each kind of measurement, about
  double link_gbit = 0;            // what the network between nodes should give; 0: not stated
  double wanted = 0;               // samples per second that a node should load; 0: what its measured steps take
  std::vector<std::string> hosts;  // distinct
  bool root() const { return session.rank() == 0; }
};

// Seconds of a work that was done several times, all ranks starting together. Whole on rank 0, empty elsewhere.
struct Runs {
  std::vector<std::vector<double>> of_rank;  // [rank][run]
  double slowest() const;                    // median over the runs of the slowest rank's time
  double rank_median(std::size_t rank) const;
  double jitter() const;  // standard deviation of a rank's runs by its median: the median of all ranks'
};

// Collective: as many runs as fit into `seconds`, after two to warm up and to see how long one takes; at least 5, at
// most `most`. Where one takes longer than all of `seconds`: none, if they are to be given up.
enum class TooSlow { run_anyway, give_up };
Runs timed_runs(Communicator& host, double seconds, int most, TooSlow too_slow, const std::function<void()>& work);

// The largest or smallest value of each host's ranks, in the order of distinct hosts.
std::vector<double> by_host(const BenchContext& context, const std::vector<double>& of_rank, bool largest);
// One number of every rank, on rank 0.
std::vector<double> gathered(Communicator& host, double mine);

// What a start reads and keeps of the data sets: in one copy for each node, then in a copy of each rank.
void bench_start(const BenchContext& context);
void bench_comm(const BenchContext& context, Preflight& result);
void bench_input(const BenchContext& context, Preflight& result);
// After all kinds: which input a node needs for the wanted rate, and how many loader threads. Rank 0.
void advise_on_input(const BenchContext& context, const Preflight& result);
void bench_step(const BenchContext& context, Preflight& result);

}  // namespace ringtrain
