#include "train/norm_recomputation.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "base/rounding.h"
#include "run/fixed_order.h"

namespace ringtrain {
namespace {

// One sum for each value of a statistic.
struct Sums {
  std::vector<double> values = {};
  Sums& operator+=(const Sums& other) {
    std::ranges::transform(values, other.values, values.begin(), std::plus());
    return *this;
  }
};

}  // namespace

NormRecomputation::NormRecomputation(const RunPlan& plan, std::shared_ptr<const Dataset> train, Backend& backend,
                                     Communicator& communicator, Watchdog& watchdog)
    : plan_(plan),
      backend_(backend),
      communicator_(communicator),
      watchdog_(watchdog),
      program_(backend.compile(plan.graph, plan.norm_loader.micro_batch, plan.precision, PassMode::statistics,
                               plan.norm_group)),
      loader_(std::move(train), plan.norm_loader),
      pinned_(backend, loader_.ring()),
      values_(static_cast<std::size_t>(plan.parameters.size() - plan.parameters.trained())) {
  program_->allocate();
}

bool NormRecomputation::measure(const Vector& weights, std::int64_t step, const WantsToLeave& wants_to_leave) {
  const std::int64_t images = plan_.norm_loader.micro_batch, passes = plan_.norm_samples / images;
  const std::int64_t ranks = communicator_.size(), rank = communicator_.rank();
  std::int64_t begin = passes * rank / ranks, end = passes * (rank + 1) / ranks, most = divide_up(passes, ranks);
  if (has_fixed_order(plan_.experiment)) {  // each rank has 2^k passes; the last ranks may have fewer
    most = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(most)));
    begin = std::min(passes, most * rank);
    end = std::min(passes, most * (rank + 1));
  }
  TreeSum<Sums> tree;
  Leaving leaving(communicator_, wants_to_leave);
  program_->set_weights(weights);
  if (begin < end) loader_.seek(0, begin * images);
  for (std::int64_t pass = begin; pass < begin + most; ++pass) {
    watchdog_.enter(step, Phase::evaluation);
    watchdog_.alive();
    if (leaving.agreed()) return false;
    if (pass >= end) continue;
    const MicroBatch& batch = loader_.next();
    program_->run({batch.inputs.data(), batch.targets.data()});
    const std::vector<float> measured = program_->statistics();
    tree.add({std::vector<double>(measured.begin(), measured.end())});
  }
  leaving.finish();
  std::vector<double> sums = tree.total().values;
  sums.resize(values_.size());
  communicator_.sum(std::span<double>(sums));

  const double groups = static_cast<double>(plan_.norm_samples / plan_.norm_group);
  const auto place = [&](const std::string& name) {
    return static_cast<std::size_t>(plan_.parameters.find(name).offset - plan_.parameters.trained());
  };
  for (const Node& node : plan_.graph.nodes()) {
    const auto* norm = std::get_if<Norm>(&node.operation);
    if (norm == nullptr || norm->by_sample()) continue;
    const std::size_t means = place(norm->running_mean), variances = place(norm->running_var);
    for (std::size_t c = 0; c < static_cast<std::size_t>(norm->channels); ++c) {
      const double mean = sums[means + c] / groups, square = sums[variances + c] / groups;
      values_[means + c] = static_cast<float>(mean);
      const double variance = square - mean * mean;
      values_[variances + c] = static_cast<float>(variance < 0 ? 0 : variance);  // NaN stays
    }
  }
  return true;
}

void NormRecomputation::exchange(Vector& weights) {
  std::vector<float> own(values_.size());
  backend_.copy_to_host(weights, plan_.parameters.trained(), own);
  backend_.copy_from_host(values_, weights, plan_.parameters.trained());
  values_ = std::move(own);
}

}  // namespace ringtrain
