// Benchmarks of `ringtrain bench`. Begin reading here. Each benchmark has a file of its own. comm.cpp, input.cpp and
// step.cpp write their results into a Preflight (preflight.h). From a Preflight, forecast.h predicts other numbers of
// ranks with the formulas of scaling_model.h. start.cpp, pipeline_trials.cpp, utilisation.cpp and components.cpp only
// print their results or write them to a table. This file has what the benchmarks share, and then each benchmark.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/output_file.h"
#include "bench/preflight.h"
#include "cluster/rank_group.h"
#include "cluster/session.h"
#include "data/batch_source.h"
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
  std::vector<double> rank_medians() const;
  double jitter() const;  // a rank's standard deviation divided by its median; the median over the ranks
};

// Runs the work as often as fits into `seconds`, at least 5 times and at most `most` times. Two runs before these warm
// up and show how long a run takes. If one run takes longer than `seconds`, give_up returns no runs. Collective.
enum class TooSlow { run_anyway, give_up };
Runs timed_runs(Communicator& host, double seconds, int most, TooSlow too_slow, const std::function<void()>& work);

// Returns the largest value among the ranks of each host, in the order of BenchContext::hosts.
std::vector<double> largest_by_host(const BenchContext& context, const std::vector<double>& of_rank);

// Returns the number of steps that take about `seconds`, from `least` to `most`, the same on all ranks. Collective.
std::int64_t steps_in(Communicator& host, double seconds, double seconds_per_step, std::int64_t least,
                      std::int64_t most);

// Plans the experiment on all ranks, without validation, and compiles its program, after which the ranks have the same
// fusions. Collective.
RunPlan compiled_plan(const BenchContext& context, const DatasetIndex& train);

// ---- start

// Measures what the start reads from the data sets and keeps in memory, with one copy per node and one per rank.
void bench_start(const BenchContext& context);

// ---- comm

void bench_comm(const BenchContext& context, Preflight& result);

// ---- input

// Measures the rates of the file system and of the loaders of every node, on all nodes at the same time. From these
// advise_on_input() computes what the loaders of a node need for a wanted rate of samples.
void bench_input(const BenchContext& context, Preflight& result);
// Called on rank 0 after all measurements. Prints which input a node needs for the wanted rate, and how many loader
// threads.
void advise_on_input(const BenchContext& context, const Preflight& result);

// Measurements of the slowest node. Its ranks were measured at the same time.
struct NodeInput {
  double samples_per_second = 0;  // all its loaders together
  double bytes_per_second = 0;    // rate at which the data set's files were read
  int loader_threads = 1;         // all its ranks together
  int ranks = 1, cores = 1;
  int computing_threads = 1;         // all its ranks together; one per rank with GPUs
  bool images = false, raw = false;  // raw: the images are stored as decoded pixels
  std::int64_t image_size = 0, channels = 3;
};

struct InputAdvice {
  double samples_per_core = 0;                     // rate of a loader thread that has a core to itself
  std::int64_t threads = 0, threads_per_rank = 0;  // needed for the wanted rate; the same on every rank
  std::int64_t free_cores = 0;                     // not used by computing threads, at least 0
  bool loaders_do = false;                         // whether there are enough cores: threads <= free_cores
  std::int64_t decoded_size = 0;                   // side of a decoded data set's images, in pixels
  double decoded_bytes_per_second = 0;             // needed to read such a data set
  bool files_do = false;                           // whether the files were read at least that fast
};

// Loader threads share the cores of the node. The rate of one thread is the rate of all, divided by the number of
// threads or of cores, whichever is smaller. The side of a decoded data set's images is 8/7 of the input's side, so
// that crops are possible (256 pixels for 224). Each channel of a pixel takes one byte.
InputAdvice input_advice(const NodeInput& node, double wanted_samples_per_second);

// Returns the advice as lines: JPEGs or a decoded data set, and the number of loader threads per rank.
std::vector<std::string> input_advice_lines(const NodeInput& node, double wanted_samples_per_second);

// ---- step

void bench_step(const BenchContext& context, Preflight& result);

// Returns the CPUs of the first half of the cores, or nothing if the number of cores is odd. `core_of` has the core of
// each CPU, at the same index.
std::vector<int> half_of_cores(const std::vector<int>& cpus, const std::vector<int>& core_of);

// ---- split: finds the split size and the cuts with which a pipeline is fastest. Every candidate trains a few steps on
// the job's ranks

struct PipelineTrial {
  std::int64_t micro_batch = 0;    // the split size
  std::int64_t micro_batches = 0;  // number of micro-batches in a step of a replica
  std::vector<std::string> cuts;   // the first layer of each stage after the first
  double seconds = 0;              // time of a step: mean over the ranks, median over the steps
  double samples_per_second = 0;
  double bubble_seconds = 0;    // part of `seconds`, mean over the ranks: waiting for another stage
  double boundary_seconds = 0;  // part of `seconds`: transfers at the cuts
};

// Returns at most `most` of the possible micro-batches, the largest ones. Each is about twice the one before.
std::vector<std::int64_t> micro_batches_to_try(const BatchShares& shares, std::size_t most);

// Measures for about `seconds` in all, with fresh weights and at least 2 steps per candidate, unless the experiment has
// fewer. The first of several steps is not counted. If `only_sizes` is true, only the experiment's cuts are tried, with
// at most 6 sizes. `validation` is the validation set (null: none). It matters because it takes memory. Candidates that
// do not fit into memory are left out. Collective over the group. All ranks get the same result. Throws Error if the
// experiment is not a pipeline, or if no candidate fits.
std::vector<PipelineTrial> measure_pipelines(const Experiment& experiment, const DatasetIndex& train,
                                             const DatasetIndex* validation, Machine& machine, const RankGroup& group,
                                             double seconds, bool only_sizes);

const PipelineTrial& fastest(const std::vector<PipelineTrial>& trials);
// Returns a row for each trial. results/plot_bench.py draws the throughput against the split size, with a line for each
// set of cuts.
std::string pipeline_csv(const Experiment& experiment, int ranks, const std::vector<PipelineTrial>& trials);
OutputKind split_table();  // the kind of a file with these rows

// ---- utilisation: shows how much of a machine small and large batches use. It runs training steps on random pictures,
// with growing batches, until a batch does not fit into memory

// Returns an experiment with the three-convolution CNN on pictures of 32 x 32 with 10 classes (as in CIFAR-10), for
// users without an experiment file.
Experiment small_cnn_experiment();

// Measures batches of 1, 2, 4, ... up to `largest` (0: up to 2^24), then on a CPU the largest one that fits, and then
// reports the first one that does not. `limit_gib` is the memory limit of a rank. If it is 0, memory.limit_gib is the
// limit, or else nine tenths of the GPU's free memory, or of the rank's share of the node's free memory. The smallest
// limit of all ranks counts. Collective. Rank 0 writes the result to the file `csv` unless that is "". Throws Error if
// the experiment does not train on pictures, or if no batch fits.
void bench_utilisation(const BenchContext& context, double limit_gib, std::int64_t largest, const std::string& csv);
OutputKind utilisation_table();  // the kind of that file

// ---- components

// Measures the whole pipeline of a training on images first, and then the pipeline without each of its parts. Data sets
// of pixels have no decoding, CPUs no copy, and a single rank no all-reduce. Rank 0 writes the result to the file `csv`
// unless that is "". Collective. Throws Error if the experiment does not train on images.
void bench_components(const BenchContext& context, const std::string& csv);
OutputKind components_table();

// The part of the loader's work that a source of micro-batches leaves out.
enum class InputPart {
  storage,  // the records are in memory and nothing is read
  decode,   // records are read but not decoded; a few pictures that were decoded at the start are augmented
  augment,  // pictures are decoded, but not resized
};

// Returns a source that leaves out one part. Without reading or decoding, it gives a few pictures of the data set again
// and again. Reads and decodes a few dozen pictures in the epoch's order; they replace the work that is removed. `plan`
// is a training plan. Throws Error if the data set has no images, or if decoding is to be removed and it has pixels.
std::unique_ptr<BatchSource> make_reduced_source(std::shared_ptr<const Dataset> dataset, const LoaderPlan& plan,
                                                 InputPart removed);

}  // namespace ringtrain
