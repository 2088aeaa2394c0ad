#include "backend/cuda/program/update.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/program/vector_operations.h"

namespace ringtrain::cuda {
namespace {

// Completes squared norms when each rank holds only parts of tensors. The norms of a rank's parts become norms of whole
// tensors by adding the parts of the other ranks. The host computes the sums, so each call waits for the device once.
class CompletedNorms {
 public:
  // `count` is the number of this rank's parts; it may be 0.
  CompletedNorms(Device& device, std::function<void()> poll, std::int64_t count)
      : poll_(std::move(poll)),
        host_(static_cast<std::size_t>(1 + count)),
        norms_(device, size_in_bytes<double>(1 + count), "norms of tensors that ranks share"),
        ring_(device, 1 + count) {}
  // `norms` are the norms of this rank's parts, measured in the program's stream; null when the rank has no part.
  // `complete` is Update::complete_norms.
  void complete(RangeNorms* norms, const std::function<double(std::span<double>)>& complete) {
    const std::span<double> of_parts = std::span(host_).subspan(1);
    if (norms != nullptr) std::ranges::copy(norms->values(), of_parts.begin());
    host_[0] = complete(of_parts);
    ring_.upload(host_.data(), std::ssize(host_), norms_.data(), poll_);
  }
  const double* total() const { return norms_.data<const double>(); }      // one number, on the device
  const double* norms() const { return norms_.data<const double>() + 1; }  // [count], on the device
  std::int64_t bytes() const { return norms_.bytes(); }

 private:
  std::function<void()> poll_;
  std::vector<double> host_;  // [1 + count]: the total comes first
  DeviceMemory norms_;
  UploadRing<double> ring_;
};

template <class T>
DeviceMemory on_device(Device& device, const std::vector<T>& values) {
  DeviceMemory memory(device, size_in_bytes<T>(std::ssize(values)), "Muon's matrices");
  device.copy(memory.data(), values.data(), memory.bytes(), CopyKind::to_device, device.compute_stream());
  return memory;
}

// MuonDirections does Muon's work before an update on a device. It updates the momentum, makes the matrices orthogonal
// and gathers the directions from the other ranks.
class MuonDirections {
 public:
  MuonDirections(Device& device, const std::function<void()>& poll, std::span<const UpdateRange> ranges)
      : device_(device) {
    std::vector<NormRange> matrices;
    std::vector<std::int64_t> places;
    for (const UpdateRange& range : ranges) {
      if (range.direction < 0) continue;
      matrices.push_back({.begin = range.begin, .count = range.end - range.begin});
      places.push_back(range.direction);
    }
    count_ = static_cast<int>(matrices.size());
    blocks_ = range_blocks(matrices);
    ranges_ = on_device(device, matrices);
    places_ = on_device(device, places);
    wait_for(device, device.compute_stream(), device.make_event(), poll);
  }
  // Queues the work. `rule` and `scalars` are addresses on the device. `momentum` is the optimizer's first state
  // vector.
  void queue(const Update& update, const UpdateRule* rule, const UpdateScalars* scalars, const Vector& gradients,
             Vector& momentum) {
    device_.launch(launch_of(MuonDirectionsArguments{.rule = rule,
                                                     .scalars = scalars,
                                                     .ranges = ranges_.data<const NormRange>(),
                                                     .places = places_.data<const std::int64_t>(),
                                                     .gradients = gradients.data(),
                                                     .momentum = momentum.data(),
                                                     .directions = update.directions->data(),
                                                     .count = count_,
                                                     .blocks = blocks_}),
                   device_.compute_stream());
    update.orthogonalizer->run(*update.directions);
    if (update.gather) update.gather();
  }
  std::int64_t bytes() const { return ranges_.bytes() + places_.bytes(); }

 private:
  Device& device_;
  DeviceMemory ranges_, places_;  // NormRange[count_], std::int64_t[count_]
  int count_ = 0;
  std::int64_t blocks_ = 0;
};

std::vector<ElementRange> elements_of(std::span<const UpdateRange> ranges) {
  std::vector<ElementRange> elements;
  for (const UpdateRange& range : ranges) elements.push_back({range.begin, range.end});
  return elements;
}

// Computes the trust ratios of LARS and LAMB on a device, before the update. The kernels are in
// kernels/update.cuh.
class TrustRatios {
 public:
  TrustRatios(Device& device, std::function<void()> poll, std::span<const UpdateRange> ranges)
      : device_(device),
        poll_(std::move(poll)),
        ranges_(elements_of(ranges)),
        count_(static_cast<int>(ranges.size())),
        norm_bytes_(std::make_shared<std::int64_t>(0)),
        table_(device, size_in_bytes<TrustRange>(count_), "the ranges of trust ratios"),
        ratios_(device, size_in_bytes<float>(count_), "trust ratios"),
        host_(device, std::max(1, count_)) {
    if (count_ == 0) return;
    std::vector<TrustRange> table;
    for (const UpdateRange& range : ranges)
      table.push_back({range.weight_decay, range.has_trust_ratio ? 1 : 0, range.state() - range.begin});
    const Stream stream = device.compute_stream();
    device.copy(table_.data(), table.data(), table_.bytes(), CopyKind::to_device, stream);
    wait_for(device, stream, device.make_event(), poll_);
  }
  // Queues the work. `gradient_norms` (of whole tensors), `rule` and `scalars` are addresses on the device. For LAMB
  // the call also updates the moments, which are `state`. When ranks share the tensors, the call is collective and the
  // host waits for the device. Otherwise the host does not wait.
  void queue(const Update& update, const double* gradient_norms, const UpdateRule* rule, const UpdateScalars* scalars,
             const Vector& weights, const Vector& gradients, std::span<const std::unique_ptr<Vector>> state) {
    const bool is_lamb = update.rule.kind == OptimizerKind::lamb;
    make(weights_);
    if (is_lamb) make(directions_);
    const Stream stream = device_.compute_stream();
    if (count_ > 0) weights_.parts->measure(weights, 0);
    if (count_ > 0 && is_lamb) {
      const auto [ranges, count, partial, blocks] = directions_.parts->parts();
      device_.launch(launch_of(LambMomentsArguments{.rule = rule,
                                                    .scalars = scalars,
                                                    .ranges = ranges,
                                                    .trust = table_.data<const TrustRange>(),
                                                    .weights = weights.data(),
                                                    .gradients = gradients.data(),
                                                    .m = state[0]->data(),
                                                    .v = state[1]->data(),
                                                    .partial = partial,
                                                    .count = count,
                                                    .blocks = blocks}),
                     stream);
      directions_.parts->add_parts();
    }
    complete(weights_, update);
    if (is_lamb) complete(directions_, update);
    if (count_ == 0) return;
    const double* other = is_lamb ? directions_.data() : gradient_norms;
    device_.launch(launch_of(TrustRatiosArguments{.rule = rule,
                                                  .scalars = scalars,
                                                  .trust = table_.data<const TrustRange>(),
                                                  .weights = weights_.data(),
                                                  .other = other,
                                                  .ratios = ratios_.data<float>(),
                                                  .count = count_}),
                   stream);
  }
  const float* data() const { return ratios_.data<float>(); }  // one per range, on the device
  // Queues the copy to the host. values() returns the ratios after the device has done the copy.
  void fetch() {
    if (count_ == 0) return;
    device_.copy(host_.data(), ratios_.data(), ratios_.bytes(), CopyKind::to_host, device_.compute_stream());
  }
  std::vector<float> values() const { return {host_.data(), host_.data() + count_}; }
  std::int64_t bytes() const {
    std::int64_t bytes = table_.bytes() + ratios_.bytes() + *norm_bytes_;
    for (const Norms* norms : {&weights_, &directions_})
      if (norms->completed) bytes += norms->completed->bytes();
    return bytes;
  }

 private:
  Device& device_;
  std::function<void()> poll_;
  std::vector<ElementRange> ranges_;
  int count_;
  std::shared_ptr<std::int64_t> norm_bytes_;
  DeviceMemory table_, ratios_;  // TrustRange[count_], float[count_]
  HostMemory<float> host_;
  struct Norms {
    std::unique_ptr<DeviceRangeNorms> parts;    // null when this rank has no range
    std::unique_ptr<CompletedNorms> completed;  // null when this rank has whole tensors
    const double* data() const { return completed ? completed->norms() : parts->data(); }
  };
  void make(Norms& norms) const {
    if (count_ > 0 && !norms.parts)
      norms.parts = std::make_unique<DeviceRangeNorms>(device_, poll_, ranges_, norm_bytes_);
  }
  void complete(Norms& norms, const Update& update) const {
    if (!update.complete_norms) return norms.completed.reset();
    if (!norms.completed) norms.completed = std::make_unique<CompletedNorms>(device_, poll_, count_);
    norms.completed->complete(norms.parts.get(), update.complete_norms);
  }

  Norms weights_, directions_;  // directions_ is for LAMB
};

class DeviceUpdater : public Updater {
 public:
  DeviceUpdater(Device& device, std::function<void()> poll)
      : device_(device),
        poll_(std::move(poll)),
        copied_(device.make_event()),
        finished_(device.make_event()),
        scalars_(device, size_in_bytes<UpdateScalars>(1), "arguments of the update"),
        rule_(device, size_in_bytes<UpdateRule>(1), "the update's rule"),
        rule_ring_(device),
        host_scalars_(device, 1) {}
  void start(const Update& update, const ProgramBase* program, Vector& weights, const Vector& gradients,
             std::span<const std::unique_ptr<Vector>> state) override {
    const Stream stream = device_.compute_stream();
    rule_ring_.upload(&update.rule, 1, rule_.data(), poll_);
    upload_places(update.ranges, program);
    queue_scalars(update, gradients);
    const float* trust_ratios = nullptr;
    if (has_trust_ratio(update.rule.kind)) {
      if (!trust_) trust_ = std::make_unique<TrustRatios>(device_, poll_, update.ranges);
      const double* gradient_norms = completed_ ? completed_->norms() : update.gradient_norms->data();
      trust_->queue(update, gradient_norms, rule_.data<UpdateRule>(), scalars_.data<UpdateScalars>(), weights,
                    gradients, state);
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
  UpdateResult finish() override {
    device_.synchronize(finished_, poll_);
    UpdateResult result{.gradient_norm = std::sqrt(host_scalars_.data()->squared_norm),
                        .applied = host_scalars_.data()->applied != 0,
                        .gain = host_scalars_.data()->gain,
                        .adascale = host_scalars_.data()->adascale};
    if (reports_trust_ && result.applied) result.trust_ratios = trust_->values();
    return result;
  }
  std::int64_t bytes() const override {
    return scalars_.bytes() + rule_.bytes() + places_.bytes() + (trust_ ? trust_->bytes() : 0) +
           (muon_ ? muon_->bytes() : 0) + (completed_ ? completed_->bytes() : 0);
  }

 private:
  // Places are the same in every step. So one copy serves a whole run, and the host may wait for it.
  void upload_places(std::span<const UpdateRange> ranges, const ProgramBase* program) {
    const auto copies = program == nullptr ? nullptr : program->weight_copies();
    if (std::ranges::equal(ranges, known_ranges_) && copies == known_copies_) return;
    const Stream stream = device_.compute_stream();
    std::vector<UpdatePlace> places =
        update_places(ranges, copies == nullptr ? std::span<const WeightCopy>() : std::span(*copies));
    place_count_ = std::ssize(places);
    place_blocks_ = place_blocks(places.data(), static_cast<int>(place_count_));
    const std::int64_t bytes = size_in_bytes<UpdatePlace>(place_count_);
    if (places_.bytes() < bytes) {
      wait_for(device_, stream, copied_, poll_);  // the previous update may still read the old places
      places_ = DeviceMemory(device_, bytes, "the update's places");
    }
    if (place_count_ > 0) {
      device_.copy(places_.data(), places.data(), bytes, CopyKind::to_device, stream);
      wait_for(device_, stream, copied_, poll_);
    }
    trust_.reset();
    muon_.reset();
    completed_.reset();
    known_ranges_.assign(ranges.begin(), ranges.end());
    known_copies_ = copies;
  }
  // The norm of the whole gradient decides whether the rank's elements change and by how much.
  void queue_scalars(const Update& update, const Vector& gradients) {
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

  Device& device_;
  std::function<void()> poll_;
  Event copied_, finished_;               // copied_: the places are copied; finished_: the last update is done
  DeviceMemory scalars_, rule_, places_;  // UpdateScalars, UpdateRule, UpdatePlace[]
  UploadRing<UpdateRule> rule_ring_;
  HostMemory<UpdateScalars> host_scalars_;
  std::unique_ptr<TrustRatios> trust_;         // for known_ranges_; null until needed
  std::unique_ptr<MuonDirections> muon_;       // for known_ranges_; null until needed
  std::unique_ptr<CompletedNorms> completed_;  // norms of the gradient if ranks share tensors; else null
  bool reports_trust_ = false;                 // finish() returns the last update's trust ratios
  // The places of these ranges and copies are on the device now. Copies are compared by their shared pointer. The
  // address of a program would not do, because a later program may get the same address.
  std::vector<UpdateRange> known_ranges_;
  std::shared_ptr<const std::vector<WeightCopy>> known_copies_;
  std::int64_t place_count_ = 0, place_blocks_ = 0;
};

}  // namespace

std::unique_ptr<Updater> make_updater(Device& device, std::function<void()> poll) {
  return std::make_unique<DeviceUpdater>(device, std::move(poll));
}

}  // namespace ringtrain::cuda
