// The optimizer: its state as flat vectors, its update rule for each tensor, and the updates applied so far.
//
// This folder decides how a gradient changes the weights. Optimizer prepares an update; the backend executes it with
// the formulas of nn/update_rule.h. learning_rate() gives the rate of a step, and LossScale the loss scale of fp16.
// NoiseScale estimates the gradient noise scale; NoiseFollower and AdaScale use noise to choose the batch and the rate.
// Begin reading with the class Optimizer below.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/vector_operations.h"
#include "config/experiment.h"
#include "nn/parameters.h"

namespace ringtrain {

// Returns whether Muon (Jordan 2024) orthogonalises the updates of this tensor: a weight with two or more dimensions
// that is in neither the first nor the last layer.
bool is_muons(const Parameter& parameter);

// The layout of a flat vector that contains only Muon's matrices. The matrices of each rank are next to each other, so
// that one broadcast shares them.
//
// Dense layers are matrices [out, in], and convolutions [out, in x kernel x kernel]. An LSTM's four gates form one
// matrix [4 hidden, input], as they are stored; torch.optim.Muon treats torch.nn.LSTM the same way.
struct MuonLayout {
  std::vector<MatrixRange> matrices;  // in the order of the parameter table
  std::vector<int> owners;            // the rank that orthogonalises each matrix
  std::vector<ElementRange> shares;   // the elements of each rank; begin = end: the rank has no matrix
  std::int64_t size = 0;              // number of elements
  std::vector<MatrixRange> of(int rank) const;
};

// Assigns the matrices to the ranks. The costliest matrix comes first, and each matrix goes to the rank with the least
// work so far. See MatrixRange::cost().
MuonLayout muon_layout(const ParameterTable& parameters, int ranks);

// The ranks of a run that share the work of an update.
struct UpdateRanks {
  int rank = 0, size = 1;
  // Collective. Sends values of a backend vector from rank `root` to all ranks.
  std::function<void(std::span<float> values, int root)> broadcast = {};
};

// The inputs of an update, apart from the gradient. They depend only on the run's position, except AdaScale's averages.
struct UpdateStep {
  double rate = 0;                                      // the learning rate
  double epochs = 0;                                    // epochs so far, with a fraction
  double samples = 0;                                   // the step's samples; for half-lives
  double decay_factor = 1;                              // see decay_factor() in schedule.h
  bool reports_trust = false;                           // whether UpdateResult must contain the trust ratios
  std::optional<AdaScaleStep> adascale = std::nullopt;  // the inputs of AdaScale's gain, which multiplies the rate
};

// The part of an update that one rank does, if several ranks divide the model between them.
struct UpdateShare {
  // The elements of the flat vector that this rank updates, in ascending order and without overlap. The optimizer keeps
  // state for these elements only, unless whole_state is true. nullopt: all trained elements. An empty list: none.
  std::optional<std::vector<ElementRange>> own = std::nullopt;
  // Collective. Sums over the ranks that hold the other parts. All of them get the same bits. Null: no other ranks.
  std::function<void(std::span<double>)> sum = {};
  // If true, the state vectors have a place for every trained element, although this rank updates only `own`. An
  // element then has the same index in them as in the vector of weights. If false, they have the elements of `own`
  // only.
  bool whole_state = false;
  // Collective. `values` are the elements [begin, begin + size) of a flat vector. This rank has filled in its own
  // elements. The call fills in the others. Null: no other ranks.
  std::function<void(std::span<float> values, std::int64_t begin)> gather = {};
};

// Returns alpha_SGD of Akiba et al. 2017, the share of SGD in rmsprop_to_sgd. e, center and length are in epochs:
//
//   e < center                 exp(2 (e - center) / length) / 2
//   e < center + length / 2    1/2 + (e - center) / length
//   else                       1
//
// The curve has no jump. Its slope is 1 / length on both sides of the center. The paper, as notes and programs of
// others quote it, has 2 (e - center) / length in the second line, which would rise to 1.5 and fall back to 1.
double sgd_share(double e, double center, double length);

class Optimizer {
 public:
  // `ranks` are the ranks that share Muon's work. All of them must make the same calls. `share` is the part of the
  // elements of `parameters` that this rank updates.
  Optimizer(const OptimizerConfig& config, const ParameterTable& parameters, Backend& backend, UpdateRanks ranks = {},
            UpdateShare share = {}, const AverageConfig& average = {});

  // queue_update() and finish_update() do one update, in two parts, as the backend's functions of these names. A device
  // may get other work between them. Each queue_update() needs its finish_update() before the next one, because only
  // finish_update() says whether the update was applied.
  //
  // The gradient is `loss_scale` x the mean over the global batch. The elements after the trained ones hold this step's
  // batch norm statistics. `norm_momentum` is their weight in the running statistics. If the gradient is not finite,
  // the update is skipped and nothing changes, including the optimizer's state. The copies of the weights in `program`
  // are updated too (null: there are none).
  void queue_update(Vector& weights, const Vector& gradients, const UpdateStep& step, float loss_scale,
                    float norm_momentum, Program* program);
  UpdateResult finish_update();

  // The numbers that later updates need in addition to state(). Adam's bias correction needs the number of applied
  // updates, or with half-lives the product of the betas of these updates. Momentum correction needs the rate of the
  // last update. Schedule-free averaging needs largest_rate and average_weight.
  // Skipped updates do not count.
  struct Applied {
    std::int64_t updates = 0;
    double rate = 0;                              // rate of the last update; 0: none yet
    double largest_rate = 0;                      // largest rate of all updates
    double average_weight = 0;                    // sum over the updates of largest_rate^2
    double beta1_product = 1, beta2_product = 1;  // 1: the beta has no half-life
    bool operator==(const Applied&) const = default;
  };
  const Applied& applied() const { return applied_; }
  void resume(const Applied& applied) { applied_ = applied; }

  // Returns the names of the state() vectors in checkpoints. They are torch.optim's names if torch.optim has that
  // optimizer. The last one is "average" if there is an average of the weights.
  static std::vector<std::string> state_names(const OptimizerConfig& config, const AverageConfig& average = {});
  // Returns the names of one tensor's state. With Muon, its matrices and the other tensors have different state in the
  // same vectors. "": the tensor has no state in that vector.
  static std::vector<std::string> state_names(const OptimizerConfig& config, const Parameter& parameter,
                                              const AverageConfig& average = {});
  // Returns the state of the elements that this rank updates. For a whole model each vector has [parameters.trained()]
  // elements.
  std::vector<std::unique_ptr<Vector>>& state() { return state_; }
  // Reads or writes elements [begin, begin + size) of state vector `index`, counted in the flat vector. If ranks share
  // the elements, read_state() is collective and gives all values to every rank; write_state() keeps only this rank's
  // elements.
  void read_state(std::size_t index, std::int64_t begin, std::span<float> values);
  void write_state(std::size_t index, std::int64_t begin, std::span<const float> values);
  // Returns whether this rank has only the state of its own elements. UpdateShare::gather brings the state of other
  // ranks.
  bool is_shared() const { return share_.gather != nullptr; }
  // Returns the length of a state vector on a rank that updates the elements `own`.
  static std::int64_t state_elements(const ParameterTable& parameters,
                                     const std::optional<std::vector<ElementRange>>& own);
  // Returns whether the evaluated weights are an average (optimizer.schedule_free or average.evaluate). queue_update()
  // then gets the weights that are trained: with schedule_free y, the point at which the gradient is computed. The
  // states "z" and "average" start as copies of the weights.
  static bool averages(const OptimizerConfig& config, const AverageConfig& average = {}) {
    return config.schedule_free || (average.half_life > 0 && average.evaluate);
  }
  // Call this before the first update. It sets the state that does not start at zero.
  void begin(const Vector& weights);
  // Returns the weights that are evaluated, exported and compared. They are `weights` itself or, if averages(), the
  // average that belongs to `weights`. Each call computes the average again and copies the statistics of `weights`.
  // Waits for a device. Collective if ranks share the elements.
  Vector& evaluated(Vector& weights);
  // Returns the trained tensors in the order of the parameter table.
  std::span<const UpdateRange> ranges() const { return tensors_; }
  // Returns the squared norms of the gradient of the newest update, one per range. The gradient is the reduced one,
  // with the loss scale, before clipping and weight decay. Call this after finish_update(). Before it, fetch_norms()
  // may start the copy to the host.
  std::vector<double> gradient_norms();
  void fetch_norms() {
    if (gradient_norms_) gradient_norms_->fetch();
  }

 private:
  void set_schedule_free(UpdateRule& rule, double rate);
  void set_factors(UpdateRule& rule, double samples);
  UpdateRule rule_of(const UpdateStep& step);
  bool has_mean() const { return mean_.half_life > 0; }
  void make_ranges(const ParameterTable& parameters);
  template <class Action>
  void for_own_parts(std::int64_t begin, std::int64_t end, const Action& action) const;
  double complete_norms(std::span<double> norms);
  std::vector<float> ratios_of_tensors(const std::vector<float>& of_parts) const;
  void make_muon(const ParameterTable& parameters);
  void gather_directions();

  OptimizerConfig config_;
  AverageConfig mean_;
  Backend& backend_;
  UpdateShare share_;
  std::vector<UpdateRange> tensors_;            // the trained tensors, in the order of the parameter table
  std::vector<UpdateRange> parts_;              // the parts of them that this rank updates
  std::vector<std::size_t> tensor_of_;          // the index of each part's tensor
  std::unique_ptr<RangeNorms> gradient_norms_;  // measures the parts; null: this rank has no part
  std::vector<double> tensor_norms_;            // squared norms of the newest update, if ranks share the elements
  std::int64_t trained_;
  std::vector<std::unique_ptr<Vector>> state_;
  UpdateRanks ranks_;
  MuonLayout layout_;
  std::unique_ptr<Vector> directions_;  // null: Muon has no matrix
  std::unique_ptr<Orthogonalizer> orthogonalizer_;
  std::unique_ptr<Vector> average_;  // [parameters.size()]; null: the weights themselves are evaluated
  bool reports_trust_ = false;       // whether the newest update asked for the trust ratios
  Applied applied_, started_;        // started_ becomes applied_ if the newest update is applied
};

}  // namespace ringtrain
