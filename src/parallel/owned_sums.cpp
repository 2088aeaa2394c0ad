#include "parallel/owned_sums.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace ringtrain {

OwnedSums::OwnedSums(Communicator& communicator, std::span<float> gradients, std::int64_t trained,
                     std::int64_t bucket_elements, std::vector<OwnedRange> owners, bool on_device)
    : communicator_(communicator),
      gradients_(gradients),
      trained_(trained),
      bucket_elements_(bucket_elements),
      owners_(std::move(owners)),
      reducer_(communicator, gradients, bucket_elements,
               [this](std::int64_t begin, std::int64_t end, const BeforeSum& before, PendingSums& pending) {
                 start_bucket(begin, end, before, pending);
               }),
      on_device_(on_device) {}

void OwnedSums::begin(BeforeBucket before) {
  waited_seconds_ = 0;
  reducer_.begin(std::move(before));
}

// The elements after the trained ones are batch norm's statistics and AdaScale's norms. All ranks need their sums.
void OwnedSums::start_bucket(std::int64_t begin, std::int64_t end, const BeforeSum& before, PendingSums& pending) {
  if (before) before(0);
  const std::int64_t trained_end = std::clamp(trained_, begin, end);
  if (begin < trained_end) start_sums(begin, trained_end, pending);
  if (trained_end < end) pending.push_back(communicator_.start_sum(part(gradients_, trained_end, end)));
}

// On a device, the sums are queued before all later work. In host memory they continue until agree().
void OwnedSums::finish() {
  reducer_.ready(std::ssize(gradients_));
  if (on_device_) {
    reducer_.finish({});
    waited_seconds_ += reducer_.exposed_seconds();
  } else {
    is_summing_ = true;
  }
}

void OwnedSums::agree(std::span<double> counters) {
  if (!std::exchange(is_summing_, false)) return communicator_.sum(counters);
  reducer_.finish(counters);
  waited_seconds_ += reducer_.exposed_seconds();
}

UpdateShare OwnedSums::update_share() {
  return {.own = owned_by(communicator_.rank(), owners_),
          .sum = [this](std::span<double> values) { communicator_.sum(values); },
          .gather = [this](std::span<float> values, std::int64_t begin) { gather(values, begin); }};
}

void OwnedSums::share(Vector& weights) {
  const double begin = now_seconds();
  PendingSums pending;
  start_sharing({weights.data(), static_cast<std::size_t>(trained_)}, pending);
  for (; !pending.empty(); pending.pop_front()) pending.front()->finish();
  waited_seconds_ += now_seconds() - begin;
}

// Every owner sends its elements to all ranks. `values` is in host memory, even if the ranks use devices.
void OwnedSums::gather(std::span<float> values, std::int64_t begin) {
  for (const auto& [elements, rank] : owners_) {
    const std::int64_t from = std::max(begin, elements.begin), to = std::min(begin + std::ssize(values), elements.end);
    if (from < to) communicator_.broadcast(std::as_writable_bytes(part(values, from - begin, to - begin)), rank);
  }
}

}  // namespace ringtrain
