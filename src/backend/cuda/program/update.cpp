#include "backend/cuda/program/update.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace ringtrain::cuda {

namespace {

bool same(std::span<const UpdateRange> a, std::span<const UpdateRange> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const UpdateRange& x, const UpdateRange& y) {
    return x.begin == y.begin && x.end == y.end && x.weight_decay == y.weight_decay &&
           x.has_trust_ratio == y.has_trust_ratio && x.direction == y.direction && x.matrix_factor == y.matrix_factor &&
           x.state() == y.state();
  });
}
}  // namespace

Updater::Updater(Device& device, std::function<void()> poll)
    : device_(device),
      poll_(std::move(poll)),
      copied_(device.make_event()),
      finished_(device.make_event()),
      scalars_(device, size_in_bytes<UpdateScalars>(1), "arguments of the update"),
      rule_(device, size_in_bytes<UpdateRule>(1), "the update's rule"),
      rule_ring_(device),
      host_scalars_(device, 1) {}

// Places are the same in every step. So one copy serves a whole run, and the host may wait for it.
void Updater::upload_places(std::span<const UpdateRange> ranges, const ProgramBase* program) {
  const auto copies = program == nullptr ? nullptr : program->weight_copies();
  if (same(ranges, known_ranges_) && copies == known_copies_) return;
  const Stream stream = device_.compute_stream();
  std::vector<UpdatePlace> places =
      update_places(ranges, copies == nullptr ? std::span<const WeightCopy>() : std::span(*copies));
  place_count_ = std::ssize(places);
  place_blocks_ = place_blocks(places.data(), static_cast<int>(place_count_));
  const auto wait = [&] {
    device_.record(copied_, stream);
    device_.synchronize(copied_, poll_);
  };
  if (places_.bytes() < size_in_bytes<UpdatePlace>(place_count_)) {
    wait();  // the previous update may still read the old places
    places_ = DeviceMemory(device_, size_in_bytes<UpdatePlace>(place_count_), "the update's places");
  }
  if (place_count_ > 0) {
    device_.copy(places_.data(), places.data(), size_in_bytes<UpdatePlace>(place_count_), CopyKind::to_device, stream);
    wait();
  }
  trust_.reset();
  muon_.reset();
  completed_.reset();
  known_ranges_.assign(ranges.begin(), ranges.end());
  known_copies_ = copies;
}

// The norm of the whole gradient decides whether the rank's elements change and by how much.
void Updater::queue_scalars(const Update& update, const Vector& gradients) {
  if (update.gradient_norms != nullptr) update.gradient_norms->measure(gradients);
  if (update.complete_norms) {
    if (!completed_) completed_ = std::make_unique<CompletedNorms>(device_, poll_, std::ssize(update.ranges));
    completed_->complete(update.gradient_norms, update.complete_norms);
  } else {
    completed_.reset();
  }
  const float* small_norms = update.adascale ? gradients.data() + update.adascale->small_norms : nullptr;
  device_.launch(
      launch_of(UpdateScalarsArguments{.norms = completed_ ? completed_->total() : update.gradient_norms->data(),
                                       .scalars = scalars_.data<UpdateScalars>(),
                                       .count = completed_ ? 1 : static_cast<int>(update.gradient_norms->size()),
                                       .unscale = 1 / update.loss_scale,
                                       .clip_norm = update.clip_norm,
                                       .adascale = update.adascale.value_or(AdaScaleStep{}),
                                       .small_norms = small_norms}),
      device_.compute_stream());
}

void Updater::start(const Update& update, const ProgramBase* program, Vector& weights, const Vector& gradients,
                    std::span<const std::unique_ptr<Vector>> state) {
  const Stream stream = device_.compute_stream();
  rule_ring_.upload(&update.rule, 1, rule_.data(), poll_);
  upload_places(update.ranges, program);
  queue_scalars(update, gradients);
  const float* trust_ratios = nullptr;
  if (has_trust_ratio(update.rule.kind)) {
    if (!trust_) trust_ = std::make_unique<TrustRatios>(device_, poll_, update.ranges);
    const double* gradient_norms = completed_ ? completed_->norms() : update.gradient_norms->data();
    trust_->queue(update, gradient_norms, rule_.data<UpdateRule>(), scalars_.data<UpdateScalars>(), weights, gradients,
                  state);
    trust_ratios = trust_->data();
  }
  if (update.directions != nullptr) {
    if (!muon_) muon_ = std::make_unique<MuonDirections>(device_, poll_, update.ranges);
    muon_->queue(update, rule_.data<UpdateRule>(), scalars_.data<UpdateScalars>(), gradients, *state[0]);
  }
  UpdateArguments arguments{.rule = rule_.data<UpdateRule>(),
                            .scalars = scalars_.data<UpdateScalars>(),
                            .places = places_.data<UpdatePlace>(),
                            .count = static_cast<int>(place_count_),
                            .weights = weights.data(),
                            .gradients = gradients.data(),
                            .state = {},
                            .trust_ratios = trust_ratios,
                            .directions = update.directions == nullptr ? nullptr : update.directions->data(),
                            .average = update.average == nullptr ? nullptr : update.average->data()};
  for (std::size_t i = 0; i < state.size(); ++i) arguments.state[i] = state[i]->data();
  if (place_count_ > 0)
    device_.launch(launch_of(program == nullptr ? Type::fp32 : program->type(), arguments, place_blocks_), stream);
  const std::int64_t statistics = weights.size() - update.trained;
  if (statistics > 0)
    device_.launch(launch_of(AverageArguments{.weights = weights.data() + update.trained,
                                              .means = gradients.data() + update.trained,
                                              .scalars = scalars_.data<UpdateScalars>(),
                                              .count = statistics,
                                              .momentum = update.norm_momentum}),
                   stream);
  reports_trust_ = update.reports_trust && trust_ratios != nullptr;
  if (reports_trust_) trust_->fetch();
  device_.copy(host_scalars_.data(), scalars_.data(), scalars_.bytes(), CopyKind::to_host, stream);
  device_.record(finished_, stream);
}

UpdateResult Updater::finish() {
  device_.synchronize(finished_, poll_);
  UpdateResult result{.gradient_norm = std::sqrt(host_scalars_.data()->squared_norm),
                      .applied = host_scalars_.data()->applied != 0,
                      .gain = host_scalars_.data()->gain,
                      .adascale = host_scalars_.data()->adascale};
  if (reports_trust_ && result.applied) result.trust_ratios = trust_->values();
  return result;
}

}  // namespace ringtrain::cuda
