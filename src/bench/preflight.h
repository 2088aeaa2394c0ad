// The JSON file that `ringtrain bench` writes and `ringtrain predict` reads, and what both ask of an experiment: the
// keys that decide the time of a pass, and a plain ring.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/output_file.h"
#include "bench/scaling_model.h"
#include "config/experiment.h"

namespace ringtrain {

// All-reduces of one size. scope is "node" (all ranks of each node, on all nodes at the same time), "network" (one rank
// of each node) or "all" (all ranks of several nodes).
struct CommSample {
  std::string scope;
  SumSample sample;
};

struct InputRate {
  std::string host;
  double bytes_per_second = 0;    // raw reads, all ranks of the node together
  double samples_per_second = 0;  // all loaders of the node together
  int loader_threads = 0;         // all ranks of the node together; 0: not known
};

// Times are in seconds, and medians over many steps. They are those of the slowest rank, except input_seconds and
// input_wait, which are those of rank 0.
struct StepMeasurement {
  std::string model;  // model_keys()
  std::int64_t micro_batch = 0, accumulation = 1, rows_per_rank = 0;
  double forward = 0, backward = 0, update = 0;  // a pass of `micro_batch` and an update, without communication
  std::vector<PassTime> passes;                  // passes of several sizes, ascending
  double jitter = 0;                             // relative standard deviation of the passes of one rank
  // A pass of `micro_batch` while the node's other cores compute such passes too; 0: too few cores or little memory.
  double full_node_pass = 0;
  // A pass and a step while two ranks share the cores of one rank; 0: not measured.
  double shared_pass = 0, shared_step = 0;
  double seconds = 0;                         // a step on the same input, with the sums of gradients
  double input_seconds = 0;                   // a training step with the data set; 0: no data set
  double input_wait = 0;                      // the part of input_seconds that waits for input
  std::int64_t parameters = 0, elements = 0;  // trained parameters; elements of the gradient, with padding
  double bucket_mib = 0, element_bytes = 4;
  std::vector<WatermarkPoint> watermark;  // empty on a GPU, because the host does not see its progress
  int ranks = 1, ranks_per_node = 1, threads = 1, cores_per_node = 1;
  bool on_device = false;
  bool whole_workers = false;  // batch norm: a pass never splits a virtual worker
};

// What SlowHost::what says of passes and of sums within a node.
inline constexpr const char* slow_computing = "computing";
inline constexpr const char* slow_all_reduce = "all-reduce in the node";

struct SlowHost {
  std::string host, what;
  double times_median = 0;  // time of this host divided by the median over the hosts
};

struct Preflight {
  std::string version;  // version of the program, as --version prints it
  bool versions_equal = true;
  std::vector<std::string> hosts;
  int ranks = 1, ranks_per_node = 1;
  std::vector<CommSample> comm;
  std::map<std::string, Link> fit;  // the fitted link of each scope
  std::vector<InputRate> input;
  bool input_is_images = false, input_is_raw = false;  // only known after `input`; not in the file
  std::int64_t input_channels = 3;                     // only known after `input`; not in the file
  bool has_step = false;
  StepMeasurement step;
  std::vector<double> clock_skew_seconds;  // clock of each host minus the clock of the first host
  std::vector<SlowHost> slow;

  // Takes the results of the kinds that only `earlier` has, with their slow hosts. Both must be of the same hosts and
  // ranks.
  void keep_from(const Preflight& earlier);
  // Adds the hosts whose value is more than 10 % worse than the median. `values` has one for each host.
  void add_slow_hosts(const std::vector<double>& values, const std::string& what, bool more_is_worse);
  std::string to_json() const;
};

Preflight parse_preflight(const std::string& json, const std::string& path);  // throws Error with the path
Preflight read_preflight(const std::string& path);
std::vector<Preflight> read_preflights(const std::vector<std::string>& paths);

// The kind of such a file, for base/output_file.h.
OutputKind preflight_file();

// Returns the measurements in the file, to which those of a job of `ranks` ranks on `hosts` will be added. Nothing if
// there is no file. Throws Error if the file is of other hosts or ranks.
std::optional<Preflight> earlier_preflight(const std::string& path, const std::vector<std::string>& hosts, int ranks);

// Returns the keys on which the time of a pass depends, apart from the batch and the number of ranks, with their
// values: "precision=fp32 model.kind=resnet ...".
std::string model_keys(const Experiment& experiment);

// Throws Error unless the experiment is a ring, whose ranks all do the same. The error has the reason, and the
// overrides that make the experiment a ring. `what` begins the message: "bench step measures steps of a ring".
void refuse_other_kinds(const ParallelConfig& parallel, const std::string& what);

}  // namespace ringtrain
