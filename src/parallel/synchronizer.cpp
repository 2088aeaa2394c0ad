#include "parallel/synchronizer.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/rounding.h"
#include "cluster/gradient_reducer.h"
#include "parallel/pipeline.h"

namespace ringtrain {
namespace {

// How ranks that own parts of the weights exchange gradients and weights. There is one class for each way. If every
// rank updates all weights, the ranks need none of them.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Begins the sums of `range`, a part of the trained elements of `gradients`. Each owner gets the sums of its
  // elements.
  virtual void start_sums(std::span<float> gradients, ElementRange range, PendingSums& pending) = 0;
  // Begins to send the elements of every owner to all ranks.
  virtual void start_sharing(std::span<float> weights, PendingSums& pending) = 0;
};

// Sharded optimizer state (parallel.shard_state; ZeRO stage 1, Rajbhandari et al. 2020). A reduce-scatter leaves the
// sums of each bucket on the ranks that own its pieces. After the update the pieces are gathered.
class ShardExchange final : public Exchange {
 public:
  ShardExchange(Communicator& communicator, std::int64_t bucket_elements)
      : communicator_(communicator), bucket_elements_(bucket_elements) {}

  void start_sums(std::span<float> gradients, ElementRange range, PendingSums& pending) override {
    pending.push_back(communicator_.start_reduce_scatter(part(gradients, range), piece(range)));
  }
  void start_sharing(std::span<float> weights, PendingSums& pending) override {
    const std::int64_t size = std::ssize(weights);
    for (std::int64_t begin = 0; begin < size; begin += bucket_elements_) {
      const ElementRange bucket{begin, std::min(begin + bucket_elements_, size)};
      pending.push_back(communicator_.start_all_gather(part(weights, bucket), piece(bucket)));
    }
  }

 private:
  std::int64_t piece(ElementRange bucket) const { return shard_piece(bucket.end - bucket.begin, communicator_.size()); }

  Communicator& communicator_;
  std::int64_t bucket_elements_;
};

// Synchronous parameter servers. The servers are the ranks that own elements, and all ranks are workers. Each full
// bucket is sent to its owners and added there (Communicator::start_root_sum()). After the update the owners send the
// weights to all ranks.
class ServerExchange final : public Exchange {
 public:
  ServerExchange(Communicator& communicator, std::vector<OwnedRange> owners)
      : communicator_(communicator), owners_(std::move(owners)) {}

  void start_sums(std::span<float> gradients, ElementRange range, PendingSums& pending) override {
    for (const auto& [elements, rank] : owners_) {
      const std::int64_t from = std::max(range.begin, elements.begin), to = std::min(range.end, elements.end);
      if (from < to) pending.push_back(communicator_.start_root_sum(part(gradients, {from, to}), rank));
    }
  }
  void start_sharing(std::span<float> weights, PendingSums& pending) override {
    for (const auto& [elements, rank] : owners_)
      pending.push_back(communicator_.start_broadcast(part(weights, elements), rank));
  }

 private:
  Communicator& communicator_;
  std::vector<OwnedRange> owners_;
};

// Sums the gradients bucket by bucket while the backward pass still runs (cluster/gradient_reducer.h). Without an
// Exchange, all ranks get all sums. In a pipeline, the gradients of a stage are summed over its replicas.
class RankSums final : public Synchronizer {
 public:
  RankSums(const ParallelConfig& parallel, Communicator& all, StageRanks* stages, std::span<float> gradients,
           std::int64_t trained, std::int64_t bucket_elements, bool on_device)
      : all_(all),
        stages_(stages),
        gradients_(gradients),
        trained_(trained),
        on_device_(on_device),
        has_servers_(servers_work(parallel)),
        owners_(stages != nullptr ? std::vector<OwnedRange>() : owners(parallel, trained, bucket_elements, all.size())),
        exchange_(make_exchange(all, bucket_elements)),
        reducer_(stages != nullptr ? stages->over_replicas() : all, gradients, bucket_elements, start_of_buckets()) {}

  void begin(BeforeBucket before) override {
    waited_seconds_ = 0;
    reducer_.begin(std::move(before));
  }
  void ready(std::int64_t watermark) override { reducer_.ready(watermark); }
  void poll() override { reducer_.poll(); }

  // On a device, the sums are queued before all later work. In host memory they continue until agree().
  void all_ready() override {
    reducer_.ready(std::ssize(gradients_));
    if (on_device_)
      finish({});
    else
      is_summing_ = true;
  }

  // In host memory, the counters are summed together with the last gradients. In a pipeline they are summed over all
  // ranks, but the gradients over the replicas of a stage only.
  void agree(std::span<double> counters) override {
    const bool together = is_summing_ && stages_ == nullptr;
    if (std::exchange(is_summing_, false)) finish(together ? counters : std::span<double>());
    if (!together) all_.sum(counters);
  }

  UpdateShare update_share() override {
    if (stages_ != nullptr) return stages_->share();
    if (!exchange_) return {};
    return {.own = owned_by(all_.rank(), owners_),
            .sum = [this](std::span<double> values) { all_.sum(values); },
            .gather = [this](std::span<float> values, std::int64_t begin) { gather(values, begin); }};
  }

  void share(Vector& weights) override {
    if (!exchange_) return;
    const double begin = now_seconds();
    PendingSums pending;
    exchange_->start_sharing(part(weights.all(), {0, trained_}), pending);
    for (; !pending.empty(); pending.pop_front()) pending.front()->finish();
    waited_seconds_ += now_seconds() - begin;
  }

  double server_seconds() const override { return has_servers_ && !on_device_ ? waited_seconds_ : 0; }

 private:
  std::unique_ptr<Exchange> make_exchange(Communicator& communicator, std::int64_t bucket_elements) const {
    if (owners_.empty()) return nullptr;
    if (has_servers_) return std::make_unique<ServerExchange>(communicator, owners_);
    return std::make_unique<ShardExchange>(communicator, bucket_elements);
  }

  StartBucket start_of_buckets() {
    if (!exchange_) return {};
    return [this](std::int64_t begin, std::int64_t end, const BeforeSum& before, PendingSums& pending) {
      start_bucket(begin, end, before, pending);
    };
  }

  // The elements after the trained ones are batch norm's statistics and AdaScale's norms. All ranks need their sums.
  void start_bucket(std::int64_t begin, std::int64_t end, const BeforeSum& before, PendingSums& pending) {
    if (before) before(0);
    const std::int64_t trained_end = std::clamp(trained_, begin, end);
    if (begin < trained_end) exchange_->start_sums(gradients_, {begin, trained_end}, pending);
    if (trained_end < end) pending.push_back(all_.start_sum(part(gradients_, {trained_end, end})));
  }

  void finish(std::span<double> counters) {
    reducer_.finish(counters);
    waited_seconds_ += reducer_.exposed_seconds();
  }

  // Every owner sends its elements to all ranks. `values` is in host memory, even if the ranks use devices.
  void gather(std::span<float> values, std::int64_t begin) {
    for (const auto& [elements, rank] : owners_) {
      const std::int64_t from = std::max(begin, elements.begin),
                         to = std::min(begin + std::ssize(values), elements.end);
      if (from < to) all_.broadcast(std::as_writable_bytes(part(values, {from - begin, to - begin})), rank);
    }
  }

  Communicator& all_;   // connects all ranks
  StageRanks* stages_;  // null without a pipeline
  std::span<float> gradients_;
  std::int64_t trained_;
  bool on_device_, has_servers_;
  std::vector<OwnedRange> owners_;      // empty: every rank updates all weights
  std::unique_ptr<Exchange> exchange_;  // null: every rank updates all weights
  GradientReducer reducer_;
  bool is_summing_ = false;    // true in host memory between all_ready() and agree()
  double waited_seconds_ = 0;  // in this step, for sums and weights; on a device, the host only queues these waits
};

constexpr std::int64_t alignment = 64;  // in elements: whole cache lines, and a good alignment for GPU kernels

std::int64_t part_of(std::int64_t elements, std::int64_t parts) {
  return round_up(divide_up(elements, parts), alignment);
}

void append_pieces(std::vector<OwnedRange>& all, ElementRange range, std::int64_t piece) {
  for (int rank = 0; range.begin < range.end; ++rank, range.begin += piece)
    all.push_back({{range.begin, std::min(range.end, range.begin + piece)}, rank});
}

}  // namespace

std::unique_ptr<Synchronizer> make_synchronizer(const ParallelConfig& parallel, Communicator& communicator,
                                                StageRanks* stages, std::span<float> gradients, std::int64_t trained,
                                                std::int64_t bucket_elements, bool on_device) {
  return std::make_unique<RankSums>(parallel, communicator, stages, gradients, trained, bucket_elements, on_device);
}

std::int64_t shard_piece(std::int64_t bucket_elements, int ranks) {
  return part_of(bucket_elements, ranks);
}

std::vector<OwnedRange> owners(const ParallelConfig& parallel, std::int64_t trained, std::int64_t bucket_elements,
                               int ranks) {
  std::vector<OwnedRange> all;
  if (servers_work(parallel)) append_pieces(all, {0, trained}, part_of(trained, parallel.servers));
  if (parallel.kind == "ring" && parallel.shard_state)
    for (std::int64_t begin = 0; begin < trained; begin += bucket_elements) {
      const ElementRange bucket{begin, std::min(begin + bucket_elements, trained)};
      append_pieces(all, bucket, shard_piece(bucket.end - bucket.begin, ranks));
    }
  return all;
}

ElementRange served_range(std::int64_t trained, int range, int ranges) {
  return {trained * range / ranges, trained * (range + 1) / ranges};
}

void check_servers(const ParallelConfig& parallel, int ranks, std::int64_t trained) {
  if (servers_work(parallel) && parallel.servers > ranks)
    throw Error(cat("parallel.servers is ", parallel.servers, ", but there ", ranks == 1 ? "is " : "are ", ranks,
                    ranks == 1 ? " rank" : " ranks", ", expected at most as many servers as ranks"),
                cat("lower parallel.servers, or start ", parallel.servers, " ranks"));
  if (parallel.servers > trained)
    throw Error(cat("parallel.servers is ", parallel.servers, ", but the model has ", trained,
                    " weights, expected at most as many servers as weights"),
                "lower parallel.servers");
}

std::optional<std::vector<ElementRange>> owned_by(int rank, const std::vector<OwnedRange>& owners) {
  if (owners.empty()) return std::nullopt;
  std::vector<ElementRange> own;
  for (const OwnedRange& range : owners)
    if (range.rank == rank) own.push_back(range.elements);
  return own;
}

}  // namespace ringtrain
