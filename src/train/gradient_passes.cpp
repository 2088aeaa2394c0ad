#include "train/gradient_passes.h"

#include <algorithm>
#include <bit>

#include "run/course.h"
#include "run/fixed_order.h"

namespace ringtrain {
namespace {

// Returns the number of tree levels below a node that has `passes` passes. `passes` must be a power of two.
std::size_t levels_below(std::int64_t passes) {
  return static_cast<std::size_t>(std::countr_zero(static_cast<std::uint64_t>(passes)));
}

}  // namespace

GradientPasses::GradientPasses(const RunPlan& plan, Backend& backend, const ParameterTable& part, Vector& gradients,
                               const NoiseGroups* groups, std::span<const ElementRange> tensors)
    : backend_(backend),
      gradients_(gradients),
      fixed_order_(has_fixed_order(plan.experiment)),
      bucket_elements_(bucket_elements(plan.experiment.communication, backend.on_device(), plan.batch.ranks)),
      batch_(plan.batch) {
  if (fixed_order_) small_level_ = levels_below(plan.batch.passes_of_small_batch());
  for (std::int64_t level = 0; level < waiting_nodes(plan); ++level)
    levels_.push_back(backend.make_vector(gradients.size()));
  if (plan.measures_noise)
    small_norms_.emplace(backend, part.trained(), bucket_elements_,
                         resized(plan.batch, plan.batches.back()).small_batches(),
                         sums_small_norms(plan) ? part.size() : 0, fixed_order_, groups, tensors);
}

BeforeBucket GradientPasses::begin(const BatchPlan& batch, bool measures) {
  batch_ = batch;
  measures_ = measures;
  losses_ = {};
  if (measures) small_norms_->begin();
  if (fixed_order_) return [this](std::int64_t begin, std::uintptr_t stream) { complete(begin, stream); };
  if (!measures) return {};
  return [this](std::int64_t begin, std::uintptr_t stream) { small_norms_->measure_bucket(gradients_, begin, stream); };
}

void GradientPasses::backward(Program& program, std::int64_t pass, const BackwardHooks& hooks) {
  const bool last = pass + 1 == batch_.accumulation;
  program.backward(gradients_, !fixed_order_ && pass > 0, last ? hooks : BackwardHooks{});
  if (last) return;
  if (fixed_order_) {
    losses_.add(program.take_sums());
    keep_node(pass);
  } else if (measures_ && (pass + 1) % batch_.passes_of_small_batch() == 0) {
    small_norms_->measure(gradients_);
  }
}

LossSums GradientPasses::take_sums(Program& program) {
  if (!fixed_order_) return program.take_sums();
  TreeSum<LossSums> all = losses_;
  all.add(program.take_sums());
  return all.total();
}

// The binary number of the pass ends with `level` ones. The pass therefore completes a node on every level up to
// `level`. The largest of these nodes waits for its neighbour.
void GradientPasses::keep_node(std::int64_t pass) {
  const auto level = static_cast<std::size_t>(std::countr_one(static_cast<std::uint64_t>(pass)));
  const ElementRange all{0, gradients_.size()};
  const std::size_t before = std::min(level, small_level_);
  fold(0, before, all, 0);
  if (measures_ && level >= small_level_) small_norms_->measure(gradients_);
  fold(before, level, all, 0);
  backend_.copy(gradients_, *levels_[level]);
}

// After the last pass of a step, every waiting node is the left neighbour of the node that has just been completed.
void GradientPasses::complete(std::int64_t begin, std::uintptr_t stream) {
  const ElementRange bucket{begin, std::min(begin + bucket_elements_, gradients_.size())};
  const std::size_t root = levels_below(batch_.accumulation);
  fold(0, std::min(root, small_level_), bucket, stream);
  if (measures_) small_norms_->measure_bucket(gradients_, begin, stream);
  fold(std::min(root, small_level_), root, bucket, stream);
}

// Adds the waiting nodes of levels [from_level, to_level) to the gradients.
void GradientPasses::fold(std::size_t from_level, std::size_t to_level, ElementRange range, std::uintptr_t stream) {
  std::vector<const Vector*> nodes;
  for (std::size_t level = from_level; level < to_level; ++level) nodes.push_back(levels_[level].get());
  if (!nodes.empty()) backend_.add(nodes, range, gradients_, stream);
}

}  // namespace ringtrain
