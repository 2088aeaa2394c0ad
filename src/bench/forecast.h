// Turns measurements into a table of predictions. It chooses which measurements the scaling model uses for a given
// number of ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/preflight.h"
#include "config/batch_plan.h"
#include "config/experiment.h"

namespace ringtrain {

// The seconds by which measured steps of several ranks took longer than the scaling model says. A prediction adds these
// seconds, so that a fitted step is predicted as it was measured. The model leaves out, for example, waits for a rank
// that is late, or that computes and does not look at its messages. A rank alone waits for nobody, so its seconds are
// 0.
class Unexplained {
 public:
  // Adds the seconds by which a measured step took longer than the model says, on `ranks` ranks (at least 2) with
  // `ranks_on_node` on a node. The seconds are negative if the measured step was faster than the model.
  void add(int ranks, int ranks_on_node, double seconds);

  // Returns the seconds that were added for these ranks. Between two numbers of ranks that were added, it interpolates
  // linearly in sqrt(ln ranks), and one rank has 0 seconds. Beyond the largest number, seconds grow in proportion to
  // sqrt(ln ranks), as the wait for the slowest rank does (step_range()). Negative seconds do not grow.
  double at(int ranks, int ranks_on_node) const;

 private:
  struct Point {
    int ranks, ranks_on_node;
    double seconds;
  };
  std::vector<Point> points_;  // ascending in ranks
};

// strong: the batch of the experiment is divided among more ranks. weak: the batch grows with the ranks, so that the
// number of rows per rank stays the same.
enum class Scaling { strong, weak };
const char* scaling_name(Scaling scaling);

// flat: a ring, or halving and doubling, over all ranks. hierarchical: a reduce-scatter in the node, a sum over the
// nodes for each piece, and an all-gather in the node.
enum class Topology { flat, hierarchical };
const char* topology_name(Topology topology);

struct ForecastRow {
  Scaling scaling = Scaling::strong;
  Topology topology = Topology::flat;
  bool chosen = true;  // the experiment's sums have this topology
  int ranks = 1, nodes = 1;
  std::int64_t global_batch = 0, rows_per_rank = 0, micro_batch = 0;
  double crowding = 1;  // threads per core; above 1 they take turns
  StepTime step;
  StepRange range;
  double efficiency = 0;  // samples per second, divided by `ranks` times those of one rank
  double samples_per_second() const { return static_cast<double>(global_batch) / step.total(); }
};

struct ForecastOptions {
  std::int64_t ranks_per_node = 0, cores_per_node = 0;  // 0: as measured
  std::int64_t rows_per_rank = 0;                       // samples of a rank in weak scaling; 0: as measured
  Link network = {};                                    // a network that was not measured; beta 0: not stated
};

class Forecast {
 public:
  // Throws Error if nothing was measured, or if the measured model is not the experiment's.
  Forecast(const Experiment& experiment, const std::vector<Preflight>& measured, const ForecastOptions& options);

  // Throws Error if so many ranks cannot divide the experiment's batch or have its sums, or if no all-reduce was
  // measured for several ranks.
  ForecastRow row(Scaling scaling, Topology topology, int ranks) const;
  // Returns the topology that the experiment's sums have on so many ranks.
  Topology chosen_topology(int ranks) const;
  // Hierarchical sums are for the CPUs of several nodes that all have the same number of ranks.
  bool has_hierarchical_sums(int ranks) const;

  // A measured training step and its prediction. If no data set was used, all measured steps had the same input.
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
  // The network is assumed to be as fast as the links of a node.
  bool network_is_assumed() const { return network_is_assumed_; }
  const Uncertainty& uncertainty() const { return uncertainty_; }
  int ranks_per_node() const { return ranks_per_node_; }
  int cores_per_node() const { return cores_per_node_; }
  const StepMeasurement& base() const { return steps_.back(); }
  // A prediction adds these to the model's times (see fit_unexplained()): a share of all computing, and seconds of a
  // step.
  double computing_excess() const { return computing_excess_; }
  double unexplained(int ranks, int ranks_on_node) const;

 private:
  // The share of a batch that one rank computes.
  struct BatchShare {
    std::int64_t rows = 1, micro_batch = 1, accumulation = 1;
    bool with_input = true;
  };
  struct Setting {
    CoreSharing core_sharing;
    double crowding = 1;
  };
  // Seconds of a measured step on ranks with a core each: of a pass and of an update; and of a sample, what the data
  // set adds to a step and the wait for it.
  struct Costs {
    double forward = 0, backward = 0, update = 0;
    double input = 0, input_wait = 0;
  };
  static BatchShare share_of(const StepMeasurement& s, bool with_input) {
    return {s.rows_per_rank, s.micro_batch, s.accumulation, with_input};
  }
  static BatchShare share_of(const BatchPlan& batch) {
    return {batch.rows_per_rank, batch.micro_batch, batch.accumulation};
  }
  void take_steps(const std::vector<Preflight>& measured);
  void take_speeds(const Preflight& measured);
  bool has_links() const { return has_node_ || has_network_; }
  bool can_model(const StepMeasurement& s) const { return s.ranks == 1 || has_links(); }
  double crowding_of(int ranks_on_node) const;
  bool has_spare_core(int ranks_on_node, int cores) const;
  Setting setting(int ranks_on_node) const { return {core_sharing_, crowding_of(ranks_on_node)}; }
  BatchPlan batch_on(Scaling scaling, int ranks) const;
  // Returns the costs of a measured step, and of one on other ranks.
  Costs costs_of(std::size_t step, double micro_batch) const;
  Costs costs_on(int ranks, int ranks_on_node, double micro_batch) const;
  // Returns how many times as long computing takes as Costs says.
  double computing_factor(int ranks_on_node, const Setting& setting) const;
  // Returns the seconds that loader threads take from the computing threads of a full node. The loader was measured
  // with a core of its own.
  double loader_seconds(double rows, int ranks_on_node, double crowding) const;
  StepWork work(const BatchShare& share, int ranks, int ranks_on_node, const Setting& setting) const;
  SumChoice choice() const;
  SumAlgorithm chosen(const NodeShape& shape, bool flat) const;
  // Without a topology, sums have the one that the experiment gives them.
  Cluster cluster(int ranks, int ranks_per_node, const Setting& setting, std::optional<Topology> topology = {}) const;
  StepRange range(const BatchShare& share, int ranks, int ranks_per_node, std::optional<Topology> topology = {}) const;
  StepTime predicted(const BatchShare& share, int ranks, int ranks_per_node,
                     std::optional<Topology> topology = {}) const;
  StepTime model_time(const StepMeasurement& s, bool with_input) const;
  void fit();
  void fit_busy_share();
  void fit_core_sharing(const StepMeasurement& s);
  void fit_unexplained();
  void fit_input_cost();

  const Experiment experiment_;
  // The measured steps, one for each pair (ranks per node, ranks), in ascending order of the pair.
  std::vector<StepMeasurement> steps_;
  // One value for each of `steps_`: the seconds per sample that the data set adds to a step. The wait for input is not
  // included.
  std::vector<double> input_cost_;
  Link node_, network_;  // links between ranks that do not share their cores
  bool has_node_ = false, has_network_ = false, network_is_assumed_ = false, busy_is_fitted_ = false;
  int ranks_per_node_ = 1, cores_per_node_ = 1;
  std::int64_t rows_per_rank_ = 0;
  double loader_rate_ = 0;  // samples per second and rank; 0: not measured
  double busy_ = 0;
  double computing_excess_ = 0;                   // (time of a step on one rank) / (its passes and update) - 1
  Unexplained unexplained_, unexplained_shared_;  // for ranks with a core each, and for ranks that share cores
  CoreSharing core_sharing_;
  bool core_sharing_is_measured_ = false;
  Uncertainty uncertainty_;
};

// Reads "1..4096" as 1, 2, 4, ..., 4096: the first number is doubled, and the last number is always included. Reads
// "1,2,48" as these numbers. Throws Error.
std::vector<int> parse_ranks(const std::string& text);

}  // namespace ringtrain
