// Whether the copies of the model that ranks keep are still the same bits. Every rank takes a checksum of its copy;
// sums over the ranks tell whether all are equal, and only where they are not do the ranks find out who differs, and
// where.
//
// A checksum is four numbers of 16 bits, x. Over the n ranks of a group, n sum(x^2) = (sum x)^2 holds only if all x are
// equal (Cauchy and Schwarz). These sums are whole numbers below 2^53 for up to 2^21 ranks, so doubles hold them
// exactly: a group needs nine counters, whatever the number of its ranks.
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

// A tensor of weights, running statistics or the optimizer's state, with the padding after it.
struct ReplicatedTensor {
  std::string name;  // as in checkpoints: "weights/conv1.weight", "optimizer/exp_avg/conv1.weight"
  Vector* vector = nullptr;
  ElementRange elements;
};

// Those of a rank with `parameters`: all weights, and the optimizer's state where the rank has all of it.
std::vector<ReplicatedTensor> replicated_tensors(const ParameterTable& parameters, Vector& weights,
                                                 Optimizer& optimizer, const OptimizerConfig& config);

// Ranks are compared within groups. `index`: of this rank's group, -1: it has no copy. `what`: of errors, "stage" of a
// pipeline; empty: there is one group.
struct ReplicaGroups {
  int index = 0, count = 1;
  std::string what = {};
};

class ReplicaCheck {
 public:
  // `tensors`: the same on all ranks of a group, and neighbours of one vector lie side by side. Their vectors outlive
  // this. `known_good`: asked on rank 0 where copies differ: the newest checkpoint that was written of equal copies, as
  // an error names it; "": there is none.
  ReplicaCheck(Backend& backend, Communicator& communicator, std::vector<ReplicatedTensor> tensors,
               ReplicaGroups groups, std::function<std::string()> known_good);

  // Takes the checksums; a device does it before what it is given next.
  void start();
  // Of this rank, to be summed over all ranks. Waits for a device.
  std::vector<double> counters();
  std::int64_t counter_count() const;
  // Throws Error where the copies differ, with the same text on all ranks, which then exchange what it says:
  // collective. `sums`: of counters(). `step`: updates in the copies.
  void judge(std::span<const double> sums, std::int64_t step);
  // All of this. Collective.
  void run(std::int64_t step);
  // That the host has spent on the newest checksums.
  double seconds() const { return seconds_; }

 private:
  [[noreturn]] void report(int group, std::int64_t step);
  std::string first_difference(int group, int leader, std::int64_t members);

  Communicator& communicator_;
  std::vector<ReplicatedTensor> tensors_;
  ReplicaGroups groups_;
  std::function<std::string()> known_good_;
  std::unique_ptr<Checksums> checksums_;  // null: this rank has no copy
  double seconds_ = 0;
};

}  // namespace ringtrain
