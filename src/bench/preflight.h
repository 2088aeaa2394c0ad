// The JSON file that `ringtrain bench` writes and `ringtrain predict` reads.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/scaling_model.h"

namespace ringtrain {

// All-reduces of one size. scope is "node" (all ranks of each node, on all nodes at the same time), "network" (one rank
// of each node) or "all" (all ranks of several nodes).
struct CommSample {
  std::string scope;
  SumSample sample;
};

struct InputRate {
  std::string host;
  double bytes_per_second = 0;    // of raw reads by all ranks of the node
  double samples_per_second = 0;  // of all loaders of the node
  int loader_threads = 0;         // of all ranks of the node; 0: not known
};

// Times are seconds of the slowest rank, medians over many steps.
struct StepMeasurement {
  std::string model;  // the keys on which its speed depends, see experiment_keys.h
  std::int64_t micro_batch = 0, accumulation = 1, rows_per_rank = 0;
  double forward = 0, backward = 0, update = 0;  // of a pass of `micro_batch` and of an update, without communication
  std::vector<PassTime> passes;                  // also of other sizes, ascending
  double jitter = 0;                             // relative standard deviation of the passes of one rank
  // A pass of `micro_batch` while the other cores of the node compute such passes too; 0: no cores or memory for these.
  double full_node_pass = 0;
  // A pass and a step while two ranks share the cores of one; 0: not measured.
  double shared_pass = 0, shared_step = 0;
  double seconds = 0;                         // of a step on the same input, with the sums of gradients
  double input_seconds = 0;                   // of a training step with the data set; 0: no data set
  double input_wait = 0;                      // the part of input_seconds that waits for input
  std::int64_t parameters = 0, elements = 0;  // trained; elements of the gradient, with padding
  double bucket_mib = 0, element_bytes = 4;
  std::vector<WatermarkPoint> watermark;  // empty on a GPU, whose progress the host does not see
  int ranks = 1, ranks_per_node = 1, threads = 1, cores_per_node = 1;
  bool on_device = false;
  bool whole_workers = false;  // batch norm: a pass never splits a virtual worker
};

struct SlowHost {
  std::string host, what;
  double times_median = 0;  // its time divided by that of the median host
};

struct Preflight {
  std::string version;  // of the program, as --version prints it
  bool versions_equal = true;
  std::vector<std::string> hosts;
  int ranks = 1, ranks_per_node = 1;
  std::vector<CommSample> comm;
  std::map<std::string, Link> fit;  // by scope
  std::vector<InputRate> input;
  bool input_is_images = false, input_is_raw = false;  // only known after `input`; not in the file
  std::int64_t input_channels = 3;                     // not in the file either
  bool has_step = false;
  StepMeasurement step;
  std::vector<double> clock_skew_seconds;  // of each host, relative to the first
  std::vector<SlowHost> slow;

  // Takes over what `earlier` has and this has not, if it was measured on the same ranks. A file of other ranks is
  // ignored.
  void keep_from(const Preflight& earlier);
  std::string to_json() const;
};

Preflight parse_preflight(const std::string& json, const std::string& path);  // throws Error with the path
Preflight read_preflight(const std::string& path);

// Returns the hosts whose value is at least 10 % worse than the median.
std::vector<SlowHost> slow_hosts(const std::vector<std::string>& hosts, const std::vector<double>& values,
                                 const std::string& what, bool more_is_worse);

double median(std::vector<double> values);  // 0 if there are none

}  // namespace ringtrain
