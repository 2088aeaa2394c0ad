// Adds the gradients and losses of a rank's passes, which gives this rank's part of a step.
//
// Normally every pass adds to one gradient vector. In a fixed order (communication.order: fixed) the passes are the
// leaves of a binary tree. The sum then has the same bits for any number of ranks that share the tree:
//
//   pass     0   1   2   3   4   5   6   7
//            '-+-'   '-+-'   '-+-'   '-+-'     level 1
//              '---+---'       '---+---'       level 2
//                  '-------+-------'           level 3
//
// A rank has 2^k neighbouring passes of the global batch. Their sum is one node of the tree. halving_sum()
// (cluster/sum_schedule.h) adds the nodes of the ranks in the same tree. Each level has one vector, for a node that
// waits for its neighbour. After the last pass, the nodes of the rank are added bucket by bucket. Each bucket is added
// just before it is summed over the ranks.
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
  // `gradients` holds the gradients of the parameters `part` and the other values that are summed with them. `groups`
  // are the groups of `tensors` whose small-batch norms are measured separately (noise.groups). null: no groups.
  GradientPasses(const RunPlan& plan, Backend& backend, const ParameterTable& part, Vector& gradients,
                 const NoiseGroups* groups, std::span<const ElementRange> tensors);

  // Begins a step of batch.accumulation passes. If `measures` is true, the norms of the step's small batches are
  // measured. Returns a function that must be called for each bucket of gradients before the bucket is summed over the
  // ranks. The function is empty if there is nothing to do for a bucket.
  BeforeBucket begin(const BatchPlan& batch, bool measures);
  // Runs the backward pass of pass `pass` of the step, after its forward pass. `hooks` launch buckets during the last
  // backward pass.
  void backward(Program& program, std::int64_t pass, const BackwardHooks& hooks);
  // Returns the sums over all passes of the step.
  LossSums take_sums(Program& program);

  // Returns the norms of the steps that measure them. null: the run measures none.
  SmallBatchNorms* small_norms() { return small_norms_ ? &*small_norms_ : nullptr; }

 private:
  void keep_node(std::int64_t pass);
  void complete(std::int64_t begin, std::uintptr_t stream);
  void fold(std::size_t from_level, std::size_t to_level, ElementRange range, std::uintptr_t stream);

  Backend& backend_;
  Vector& gradients_;
  bool fixed_order_;
  std::int64_t bucket_elements_;
  std::size_t small_level_ = 0;                  // the level of the nodes that are small batches
  std::vector<std::unique_ptr<Vector>> levels_;  // the waiting node of each level; fixed order only
  TreeSum<LossSums> losses_;                     // losses of the passes before the last one; fixed order only
  std::optional<SmallBatchNorms> small_norms_;
  BatchPlan batch_;
  bool measures_ = false;
};

}  // namespace ringtrain
