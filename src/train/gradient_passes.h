// How the gradients and losses of a rank's passes become those of its part of a step.
//
// As a rule each pass adds to one vector. In a fixed order (communication.order: fixed) passes are the leaves of a
// binary tree, so that the sum has the same bits wherever the tree is cut between ranks:
//
//   pass     0   1   2   3   4   5   6   7
//            '-+-'   '-+-'   '-+-'   '-+-'     level 1
//              '---+---'       '---+---'       level 2
//                  '-------+-------'           level 3
//
// A rank has 2^k neighbouring passes of the global batch, whose sum is a node of the tree. halving_sum()
// (cluster/sum_schedule.h) adds the nodes of the ranks in the same tree. One vector for each level keeps a node that
// waits for its neighbour. After the last pass the rank's nodes are added bucket by bucket, each before its sum over
// the ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/tree_sum.h"
#include "cluster/gradient_reducer.h"
#include "run/plan.h"
#include "train/small_batch_norms.h"

namespace ringtrain {

class GradientPasses {
 public:
  // `gradients`: of the parameters `part`, and what else travels with them. `groups` of `tensors`, whose small batches'
  // norms are told apart (noise.groups); null: none.
  GradientPasses(const RunPlan& plan, Backend& backend, const ParameterTable& part, Vector& gradients,
                 const NoiseGroups* groups, std::span<const ElementRange> tensors);

  // A step of batch.accumulation passes. `measures`: the norms of its small batches. Returns what shall see each bucket
  // of gradients before its sum over the ranks.
  BeforeBucket begin(const BatchPlan& batch, bool measures);
  // Pass `pass` of the step, after its forward pass. `hooks`: launch buckets during the last one.
  void backward(Program& program, std::int64_t pass, const BackwardHooks& hooks);
  // Of all passes of the step.
  LossSums take_sums(Program& program);

  // Of the steps that measure them; null: the run measures none.
  SmallBatchNorms* small_norms() { return small_norms_ ? &*small_norms_ : nullptr; }

 private:
  void keep_node(std::int64_t pass);
  void complete(std::int64_t begin, std::uintptr_t stream);
  void fold(std::size_t from_level, std::size_t to_level, ElementRange range, std::uintptr_t stream);

  Backend& backend_;
  Vector& gradients_;
  bool fixed_order_;
  std::int64_t bucket_elements_;
  std::size_t small_level_ = 0;                  // of the nodes that are small batches
  std::vector<std::unique_ptr<Vector>> levels_;  // the node of each level that waits; fixed order only
  TreeSum<LossSums> losses_;                     // of the passes before the last one; fixed order only
  std::optional<SmallBatchNorms> small_norms_;
  BatchPlan batch_;
  bool measures_ = false;
};

}  // namespace ringtrain
