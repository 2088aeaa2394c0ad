// `ringtrain bench` measures what a job's nodes give; `ringtrain predict` says what follows for other numbers of ranks.
#pragma once

#include <string>
#include <vector>

#include "cluster/session.h"
#include "train/run.h"

namespace ringtrain {

struct BenchArguments {
  std::vector<std::string> kinds;  // of comm, input, step
  ExperimentArguments experiment;  // no path: comm with the experiment's defaults
  std::string json;                // where the result goes; what a file of the same ranks holds of other kinds stays
  double seconds = 10;             // for each kind, about
  double link_gbit = 0;            // what the network between nodes should give; 0: not stated
};
// Collective over all ranks. Returns the exit code.
int bench(const BenchArguments& arguments, Session& session);

struct PredictArguments {
  ExperimentArguments experiment;
  std::string ranks = "1..4096";              // "1..4096": doubling; "1,2,48": these
  std::vector<std::string> preflight, check;  // files: fitted on, compared with
  std::int64_t ranks_per_node = 0;            // 0: as measured
  std::int64_t cores_per_node = 0;            // 0: as measured
  std::int64_t rows_per_rank = 0;             // of the rows with a growing batch; 0: as measured
  double latency_us = 0, link_gbit = 0;       // of a network that was not measured; 0: not stated
  std::string csv, json, svg;
};
int predict(const PredictArguments& arguments);

}  // namespace ringtrain
