// What `ringtrain bench` measures and `ringtrain predict` reads: one JSON file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/scaling_model.h"

namespace ringtrain {

// All-reduces of one size. scope: "node" (all ranks of each node, nodes at the same time), "network" (one rank of each
// node), "all" (both, where that is neither).
struct CommSample {
  std::string scope;
  SumSample sample;
};

struct InputRate {
  std::string host;
  double bytes_per_second = 0;    // of raw reads by all ranks of the node
  double samples_per_second = 0;  // of all loaders of the node
  int loader_threads = 0;         // of the node's ranks together; 0: not known
};

// Seconds of the slowest rank, medians over many steps.
struct StepMeasurement {
  std::string model;  // the experiment's keys that decide it
  std::int64_t micro_batch = 0, accumulation = 1, rows_per_rank = 0;
  double forward = 0, backward = 0, update = 0;  // of one pass of `micro_batch`, of one update; nothing communicated
  std::vector<PassTime> passes;                  // of other sizes too, ascending
  double jitter = 0;                             // relative standard deviation of one rank's passes
  // A pass of `micro_batch` with as many like it beside it as the node has cores for; 0: there was no room for any.
  double full_node_pass = 0;
  // A pass and a step while two ranks take turns on the cores of one; 0: not measured.
  double shared_pass = 0, shared_step = 0;
  double seconds = 0;                         // of a whole step on the same input, gradients summed
  double input_seconds = 0;                   // of a whole training step with the data set; 0: there was none
  double input_wait = 0;                      // of that, waiting for input
  std::int64_t parameters = 0, elements = 0;  // trained; of the gradient, with padding
  double bucket_mib = 0, element_bytes = 4;
  std::vector<WatermarkPoint> watermark;  // empty on a GPU, where the host does not see it
  int ranks = 1, ranks_per_node = 1, threads = 1, cores_per_node = 1;
  bool on_device = false;
  bool whole_workers = false;  // batch norm: a pass takes no part of a virtual worker
};

struct SlowHost {
  std::string host, what;
  double times_median = 0;  // by how much it is slower than the median host
};

struct Preflight {
  std::string version;  // of the program, as --version says it
  bool versions_equal = true;
  std::vector<std::string> hosts;
  int ranks = 1, ranks_per_node = 1;
  std::vector<CommSample> comm;
  std::map<std::string, Link> fit;  // by scope
  std::vector<InputRate> input;
  bool input_is_images = false, input_is_raw = false;  // of this call's `input` alone: not in the file
  std::int64_t input_channels = 3;                     // likewise
  bool has_step = false;
  StepMeasurement step;
  std::vector<double> clock_skew_seconds;  // of each host before the first
  std::vector<SlowHost> slow;

  // What is measured anew takes the place of what `earlier` has of the same ranks; another job's file counts for
  // nothing.
  void keep_from(const Preflight& earlier);
  std::string to_json() const;
};

Preflight parse_preflight(const std::string& json, const std::string& path);  // throws Error naming the path
Preflight read_preflight(const std::string& path);

// The hosts whose value is at least 10 % worse than the median.
std::vector<SlowHost> slow_hosts(const std::vector<std::string>& hosts, const std::vector<double>& values,
                                 const std::string& what, bool more_is_worse);

double median(std::vector<double> values);  // 0 of none

}  // namespace ringtrain
