// From measurements to a table of predictions: chooses what of the measured enters the scaling model for so many ranks.
#pragma once

#include <string>
#include <vector>

#include "bench/preflight.h"
#include "config/experiment.h"

namespace ringtrain {

// strong: the experiment's batch on more ranks. weak: the batch grows with the ranks, each keeps its rows.
enum class Scaling { strong, weak };
const char* scaling_name(Scaling scaling);
const char* topology_name(Topology topology);

struct ForecastRow {
  Scaling scaling = Scaling::strong;
  Topology topology = Topology::flat;
  int ranks = 1, nodes = 1;
  std::int64_t global_batch = 0, rows_per_rank = 0, micro_batch = 0;
  double crowding = 1;  // threads for each core: above 1 they take turns
  StepTime step;
  StepRange range;
  double efficiency = 0;  // samples/s by those of as many single ranks
  double samples_per_second() const { return static_cast<double>(global_batch) / step.total(); }
};

struct ForecastOptions {
  std::int64_t ranks_per_node = 0, cores_per_node = 0;  // 0: as measured
  std::int64_t rows_per_rank = 0;                       // of weak scaling; 0: as measured
  Link network = {};                                    // where it was not measured; beta 0: not stated
};

class Forecast {
 public:
  // Throws Error when nothing was measured, or another model than the experiment's.
  Forecast(const Experiment& experiment, const std::vector<Preflight>& measured, const ForecastOptions& options);

  // Throws Error where the experiment's batch does not go onto so many ranks.
  ForecastRow row(Scaling scaling, Topology topology, int ranks) const;

  // A measured training step (or, where it had no data set, a step on the same input), and what the model says of it.
  struct Comparison {
    int ranks = 1, ranks_on_node = 1;
    double measured = 0, predicted = 0;  // seconds
    StepRange range;
  };
  Comparison compare(const StepMeasurement& measured) const;

  double busy() const { return busy_; }
  bool busy_is_fitted() const { return busy_is_fitted_; }
  const CoreSharing& core_sharing() const { return core_sharing_; }
  bool core_sharing_is_measured() const { return core_sharing_is_measured_; }
  bool network_is_assumed() const { return network_is_assumed_; }  // the node's own figures stand for it
  const Uncertainty& uncertainty() const { return uncertainty_; }
  int ranks_per_node() const { return ranks_per_node_; }
  int cores_per_node() const { return cores_per_node_; }
  const StepMeasurement& base() const { return steps_.back(); }

 private:
  // A rank's share of a batch.
  struct BatchShare {
    std::int64_t rows = 1, micro_batch = 1, accumulation = 1;
    bool with_input = true;
  };
  struct Setting {
    CoreSharing core_sharing;
    double crowding = 1;
  };
  static BatchShare share_of(const StepMeasurement& s) { return {s.rows_per_rank, s.micro_batch, s.accumulation}; }
  double crowding_of(int ranks_on_node) const;
  bool has_spare_core(int ranks_on_node, int cores) const;
  Setting setting(int ranks_on_node) const { return {core_sharing_, crowding_of(ranks_on_node)}; }
  StepWork work(const BatchShare& share, int ranks, int ranks_on_node, const Setting& setting) const;
  FlatSums sums() const;
  Cluster cluster(int ranks, int ranks_per_node, const Setting& setting) const;
  StepRange range(const BatchShare& share, int ranks, int ranks_per_node, Topology topology) const;
  void fit_core_sharing(const StepMeasurement& s);
  void fit();

  const Experiment experiment_;
  std::vector<StepMeasurement> steps_;  // ascending in ranks per node, one each
  Link node_, network_;                 // of ranks that have their cores for themselves
  bool has_node_ = false, has_network_ = false, network_is_assumed_ = false, busy_is_fitted_ = false;
  int ranks_per_node_ = 1, cores_per_node_ = 1;
  std::int64_t rows_per_rank_ = 0;
  double loader_rate_ = 0;  // samples per second of one rank; 0: not measured
  double busy_ = 0;
  CoreSharing core_sharing_;
  bool core_sharing_is_measured_ = false;
  Uncertainty uncertainty_;
};

// "1..4096": doubling, and the last; "1,2,48": these. Throws Error.
std::vector<int> parse_ranks(const std::string& text);

}  // namespace ringtrain
