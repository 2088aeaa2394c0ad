// Checks whether the copies of the model on the ranks still have the same bits. Every rank takes a checksum of its
// copy. Sums over the ranks tell whether all checksums are equal. Only if they are not equal do the ranks find out
// which ranks and which tensor differ.
//
// A checksum consists of four numbers x of 16 bits. For the n ranks of a group, n sum(x^2) = (sum x)^2 holds only if
// all x are equal (Cauchy and Schwarz). The sums are whole numbers below 2^53 for up to 2^21 ranks, so doubles hold
// them exactly. A group needs nine counters for any number of ranks.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "cluster/communicator.h"
#include "optim/optimizer.h"

namespace ringtrain {

// A tensor of weights, running statistics or optimizer state, with the padding after it.
struct ReplicatedTensor {
  std::string name;  // as in checkpoints: "weights/conv1.weight", "optimizer/exp_avg/conv1.weight"
  Vector* vector = nullptr;
  ElementRange elements;
};

// Returns the tensors of a rank that holds `parameters`: all weights, and the optimizer's state if the rank has the
// whole state.
std::vector<ReplicatedTensor> replicated_tensors(const ParameterTable& parameters, Vector& weights,
                                                 Optimizer& optimizer, const Experiment& experiment);

// Ranks are compared within groups. `index` is the group of this rank. `what` names a group in errors, for example
// "stage" for a pipeline. It is empty if there is one group.
struct ReplicaGroups {
  int index = 0, count = 1;
  std::string what = {};
};

// The newest checkpoint of a run that is known to be good. The message about a difference names it.
struct KnownCheckpoint {
  std::string name;      // "runs/a/checkpoints/step-000000010.h5 (after step 10)"; "": there is none
  bool compared = true;  // false: no checkpoint is known to be good, and this is the newest of the others
};

// Returns whether the ranks should compare their copies, `seconds` seconds after the last comparison. They compare at
// most once a minute, and comparisons take at most a thousandth of the time. `cost` is the seconds of a comparison.
// This rule is used with communication.check_every_steps: -1.
bool is_time_to_compare(double seconds, double cost);

class ReplicaCheck {
 public:
  // `tensors` must be the same on all ranks of a group. Tensors of one vector must be neighbours in memory. Their
  // vectors must outlive this object. `known_good` is called on rank 0 if copies differ.
  ReplicaCheck(Backend& backend, Communicator& communicator, std::vector<ReplicatedTensor> tensors,
               ReplicaGroups groups, std::function<KnownCheckpoint()> known_good);

  // Starts the checksums. A device computes them before any work that it is given later.
  void start();
  // Returns the counters of this rank, which must be summed over all ranks. Waits for a device.
  std::vector<double> counters();
  // Collective if copies differ. Throws Error if they differ, with the same text on all ranks; the ranks exchange
  // messages to write that text. `sums` are the summed counters(). `step` is the number of updates in the copies.
  void judge(std::span<const double> sums, std::int64_t step);
  // Does all three steps above: start, sum, judge. Collective.
  void run(std::int64_t step);
  // Returns the seconds that the host spent in the newest start(). A CPU computes the checksums in start().
  double seconds() const { return seconds_; }

 private:
  [[noreturn]] void report(int group, std::int64_t step);
  std::string first_difference(int group, int leader, std::int64_t members);

  Communicator& communicator_;
  std::vector<ReplicatedTensor> tensors_;
  ReplicaGroups groups_;
  std::function<KnownCheckpoint()> known_good_;
  std::unique_ptr<Checksums> checksums_;
  double seconds_ = 0;
};

}  // namespace ringtrain
