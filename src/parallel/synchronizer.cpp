#include "parallel/synchronizer.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "parallel/stage_ranks.h"

namespace ringtrain {
namespace {

class RingSynchronizer : public Synchronizer {
 public:
  RingSynchronizer(Communicator& communicator, std::span<float> gradients, std::int64_t bucket_elements, bool on_device)
      : communicator_(communicator),
        reducer_(communicator, gradients, bucket_elements),
        elements_(std::ssize(gradients)),
        on_device_(on_device) {}

  void begin(BeforeBucket before) override { reducer_.begin(std::move(before)); }
  void ready(std::int64_t watermark) override { reducer_.ready(watermark); }
  void poll() override { reducer_.poll(); }

  // On a device, the sums are queued before all later work. In host memory they continue until agree().
  void all_ready() override {
    reducer_.ready(elements_);
    if (on_device_)
      reducer_.finish({});
    else
      is_summing_ = true;
  }

  void agree(std::span<double> counters) override {
    if (std::exchange(is_summing_, false))
      reducer_.finish(counters);
    else
      communicator_.sum(counters);
  }

 private:
  Communicator& communicator_;
  GradientReducer reducer_;
  std::int64_t elements_;
  bool on_device_;
  bool is_summing_ = false;  // true in host memory between all_ready() and agree()
};

}  // namespace

std::unique_ptr<Synchronizer> make_ring_synchronizer(Communicator& communicator, std::span<float> gradients,
                                                     std::int64_t bucket_elements, bool on_device) {
  return std::make_unique<RingSynchronizer>(communicator, gradients, bucket_elements, on_device);
}

// The base class of synchronizers whose ranks own parts of the weights.
class OwnedSums : public Synchronizer {
 public:
  OwnedSums(Communicator& communicator, std::span<float> gradients, std::int64_t trained, std::int64_t bucket_elements,
            std::vector<OwnedRange> owners, bool on_device);
  void begin(BeforeBucket before) override;
  void ready(std::int64_t watermark) override { reducer_.ready(watermark); }
  void poll() override { reducer_.poll(); }
  void all_ready() override;
  void agree(std::span<double> counters) override;
  UpdateShare update_share() override;
  void share(Vector& weights) override;

 protected:
  // Begins the sums of [begin, end), which is a part of the trained elements.
  virtual void start_sums(std::int64_t begin, std::int64_t end, PendingSums& pending) = 0;
  // Begins to send the elements of every owner to all ranks.
  virtual void start_sharing(std::span<float> weights, PendingSums& pending) = 0;

  static std::span<float> part(std::span<float> values, std::int64_t begin, std::int64_t end) {
    return values.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  }
  // Returns the seconds that the host waited for sums and weights in this step. On a device the result is 0, because
  // the host only queues these waits.
  double waited_seconds() const { return on_device_ ? 0 : waited_seconds_; }

  Communicator& communicator_;
  std::span<float> gradients_;
  std::int64_t trained_, bucket_elements_;
  std::vector<OwnedRange> owners_;

 private:
  void start_bucket(std::int64_t begin, std::int64_t end, const BeforeSum& before, PendingSums& pending);
  void gather(std::span<float> values, std::int64_t begin);

  GradientReducer reducer_;
  bool on_device_;
  bool is_summing_ = false;  // true in host memory between all_ready() and agree()
  double waited_seconds_ = 0;
};

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
void OwnedSums::all_ready() {
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

namespace {

class ShardedSynchronizer final : public OwnedSums {
 public:
  using OwnedSums::OwnedSums;

 private:
  void start_sums(std::int64_t begin, std::int64_t end, PendingSums& pending) override {
    pending.push_back(communicator_.start_reduce_scatter(part(gradients_, begin, end), piece(begin, end)));
  }
  void start_sharing(std::span<float> weights, PendingSums& pending) override {
    for (std::int64_t begin = 0; begin < trained_; begin += bucket_elements_) {
      const std::int64_t end = std::min(begin + bucket_elements_, trained_);
      pending.push_back(communicator_.start_all_gather(part(weights, begin, end), piece(begin, end)));
    }
  }
  std::int64_t piece(std::int64_t begin, std::int64_t end) const {
    return shard_piece(end - begin, communicator_.size());
  }
};

}  // namespace

std::unique_ptr<Synchronizer> make_sharded_synchronizer(Communicator& communicator, std::span<float> gradients,
                                                        std::int64_t trained, std::int64_t bucket_elements,
                                                        const std::vector<OwnedRange>& owners, bool on_device) {
  return std::make_unique<ShardedSynchronizer>(communicator, gradients, trained, bucket_elements, owners, on_device);
}

namespace {

class ServerSynchronizer final : public OwnedSums {
 public:
  using OwnedSums::OwnedSums;
  double server_seconds() const override { return waited_seconds(); }

 private:
  void start_sums(std::int64_t begin, std::int64_t end, PendingSums& pending) override {
    for (const auto& [elements, rank] : owners_) {
      const std::int64_t from = std::max(begin, elements.begin), to = std::min(end, elements.end);
      if (from < to) pending.push_back(communicator_.start_root_sum(part(gradients_, from, to), rank));
    }
  }
  void start_sharing(std::span<float> weights, PendingSums& pending) override {
    for (const auto& [elements, rank] : owners_)
      pending.push_back(communicator_.start_broadcast(part(weights, elements.begin, elements.end), rank));
  }
};

}  // namespace

std::unique_ptr<Synchronizer> make_server_synchronizer(Communicator& communicator, std::span<float> gradients,
                                                       std::int64_t trained, std::int64_t bucket_elements,
                                                       const std::vector<OwnedRange>& owners, bool on_device) {
  return std::make_unique<ServerSynchronizer>(communicator, gradients, trained, bucket_elements, owners, on_device);
}

namespace {

// The synchronizer of a pipeline. Each stage sums its gradients over the replicas, and all ranks sum the counters.
// `all` connects every rank.
class StageSynchronizer : public Synchronizer {
 public:
  StageSynchronizer(Communicator& all, StageRanks& stages, std::span<float> gradients, std::int64_t bucket_elements,
                    bool on_device)
      : all_(all),
        stages_(stages),
        reducer_(stages.over_replicas(), gradients, bucket_elements),
        elements_(std::ssize(gradients)),
        on_device_(on_device) {}

  void begin(BeforeBucket before) override { reducer_.begin(std::move(before)); }
  void ready(std::int64_t watermark) override { reducer_.ready(watermark); }
  void poll() override { reducer_.poll(); }
  // On a device, the sums are queued before all later work. In host memory they continue until agree().
  void all_ready() override {
    reducer_.ready(elements_);
    if (on_device_)
      reducer_.finish({});
    else
      is_summing_ = true;
  }
  void agree(std::span<double> counters) override {
    if (std::exchange(is_summing_, false)) reducer_.finish({});
    all_.sum(counters);
  }
  UpdateShare update_share() override { return stages_.share(); }

 private:
  Communicator& all_;
  StageRanks& stages_;
  GradientReducer reducer_;
  std::int64_t elements_;
  bool on_device_;
  bool is_summing_ = false;  // true in host memory between all_ready() and agree()
};

std::unique_ptr<Synchronizer> make_stage_synchronizer(Communicator& all, StageRanks& stages, std::span<float> gradients,
                                                      std::int64_t bucket_elements, bool on_device) {
  return std::make_unique<StageSynchronizer>(all, stages, gradients, bucket_elements, on_device);
}

}  // namespace

// Chooses the Synchronizer that an experiment asks for. No other file makes this choice.
std::unique_ptr<Synchronizer> make_synchronizer(const ParallelConfig& parallel, Communicator& communicator,
                                                StageRanks* stages, std::span<float> gradients, std::int64_t trained,
                                                std::int64_t bucket_elements, bool on_device) {
  if (stages != nullptr) return make_stage_synchronizer(communicator, *stages, gradients, bucket_elements, on_device);
  const std::vector<OwnedRange> all = owners(parallel, trained, bucket_elements, communicator.size());
  if (all.empty()) return make_ring_synchronizer(communicator, gradients, bucket_elements, on_device);
  const auto make = servers_work(parallel) ? make_server_synchronizer : make_sharded_synchronizer;
  return make(communicator, gradients, trained, bucket_elements, all, on_device);
}

}  // namespace ringtrain
