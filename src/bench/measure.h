// Benchmarks of `ringtrain bench`. Begin reading here. Each benchmark has a file of its own. comm.cpp, input.cpp and
// step.cpp write their results into a Preflight (preflight.h). From a Preflight, forecast.h predicts other numbers of
// ranks with the formulas of scaling_model.h. start.cpp, components.cpp, pipeline_trials.h and utilisation.h only print
// their results or write them to a table. This file has what the benchmarks share.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/preflight.h"
#include "cluster/session.h"
#include "run/machine.h"
#include "run/plan.h"

namespace ringtrain {

struct BenchContext {
  const Session& session;
  const Experiment& experiment;
  Machine& machine;
  int threads = 1;
  double seconds = 10;             // time of each kind of measurement, approximately
  double link_gbit = 0;            // the rated bandwidth between nodes; 0: not stated
  double wanted = 0;               // samples per second that a node should load; 0: what its measured steps use
  std::vector<std::string> hosts;  // each host once
  bool root() const { return session.rank() == 0; }
  std::size_t host_of(std::size_t rank) const;  // place in `hosts`
};

// Seconds of some work that all ranks started together, several times. Complete on rank 0, empty on other ranks.
struct Runs {
  std::vector<std::vector<double>> of_rank;  // [rank][run]
  double slowest() const;                    // median over the runs of the time of the slowest rank
  double rank_median(std::size_t rank) const;
  double jitter() const;  // a rank's standard deviation divided by its median; the median over the ranks
};

// Runs the work as often as fits into `seconds`, at least 5 times and at most `most` times. Two runs before these warm
// up and show how long a run takes. If one run takes longer than `seconds`, give_up returns no runs. Collective.
enum class TooSlow { run_anyway, give_up };
Runs timed_runs(Communicator& host, double seconds, int most, TooSlow too_slow, const std::function<void()>& work);

// Returns the largest or smallest value among the ranks of each host, in the order of BenchContext::hosts.
std::vector<double> by_host(const BenchContext& context, const std::vector<double>& of_rank, bool largest);

// Plans the experiment on all ranks, without validation, and compiles its program, after which the ranks have the same
// fusions. Collective.
RunPlan compiled_plan(const BenchContext& context, const DatasetIndex& train);

// Measures what the start reads from the data sets and keeps in memory, with one copy per node and one per rank.
void bench_start(const BenchContext& context);
void bench_comm(const BenchContext& context, Preflight& result);
void bench_input(const BenchContext& context, Preflight& result);
// Called on rank 0 after all measurements. Prints which input a node needs for the wanted rate, and how many loader
// threads.
void advise_on_input(const BenchContext& context, const Preflight& result);
void bench_step(const BenchContext& context, Preflight& result);
// Measures the whole pipeline of a training on images first, and then the pipeline without each of its parts. Data sets
// of pixels have no decoding, CPUs no copy, and a single rank no all-reduce. Rank 0 writes the result to the file `csv`
// unless that is "". Collective. Throws Error if the experiment does not train on images.
void bench_components(const BenchContext& context, const std::string& csv);

}  // namespace ringtrain
