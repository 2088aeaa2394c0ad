#include "backend/cuda/program/trust_ratios.h"

#include <algorithm>

namespace ringtrain::cuda {

namespace {

std::vector<ElementRange> elements_of(std::span<const UpdateRange> ranges) {
  std::vector<ElementRange> elements;
  for (const UpdateRange& range : ranges) elements.push_back({range.begin, range.end});
  return elements;
}

}  // namespace

TrustRatios::TrustRatios(Device& device, std::function<void()> poll, std::span<const UpdateRange> ranges)
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
  const Event copied = device.make_event();
  device.copy(table_.data(), table.data(), table_.bytes(), CopyKind::to_device, stream);
  device.record(copied, stream);
  device.synchronize(copied, poll_);
}

std::int64_t TrustRatios::bytes() const {
  std::int64_t bytes = table_.bytes() + ratios_.bytes() + *norm_bytes_;
  for (const Norms* norms : {&weights_, &directions_})
    if (norms->completed) bytes += norms->completed->bytes();
  return bytes;
}

void TrustRatios::make(Norms& norms) const {
  if (count_ > 0 && !norms.parts)
    norms.parts = std::make_unique<DeviceRangeNorms>(device_, poll_, ranges_, norm_bytes_);
}

void TrustRatios::complete(Norms& norms, const Update& update) const {
  if (!update.complete_norms) return norms.completed.reset();
  if (!norms.completed) norms.completed = std::make_unique<CompletedNorms>(device_, poll_, count_);
  norms.completed->complete(norms.parts.get(), update.complete_norms);
}

void TrustRatios::queue(const Update& update, const double* gradient_norms, const UpdateRule* rule,
                        const UpdateScalars* scalars, const Vector& weights, const Vector& gradients,
                        std::span<const std::unique_ptr<Vector>> state) {
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

void TrustRatios::fetch() {
  if (count_ == 0) return;
  device_.copy(host_.data(), ratios_.data(), ratios_.bytes(), CopyKind::to_host, device_.compute_stream());
}

}  // namespace ringtrain::cuda
