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

// Every rank keeps all weights. A ring sums the gradients bucket by bucket while the backward pass still runs
// (cluster/gradient_reducer.h). The other synchronizers change what is done with a bucket, or which ranks sum the
// counters.
class RingSynchronizer : public Synchronizer {
 public:
  RingSynchronizer(Communicator& communicator, std::span<float> gradients, std::int64_t bucket_elements, bool on_device,
                   StartBucket start = {})
      : communicator_(communicator),
        gradients_(gradients),
        reducer_(communicator, gradients, bucket_elements, std::move(start)),
        on_device_(on_device) {}

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

  void agree(std::span<double> counters) override {
    if (!end_sums(counters)) communicator_.sum(counters);
  }

 protected:
  // Ends the sums of gradients in host memory, and sums `counters` with them. Returns false on a device, where
  // all_ready() has done so without counters.
  bool end_sums(std::span<double> counters) {
    if (!std::exchange(is_summing_, false)) return false;
    finish(counters);
    return true;
  }
  // Adds to the seconds that the host waited for sums and weights in this step.
  void add_wait(double seconds) { waited_seconds_ += seconds; }
  // Returns these seconds. On a device the result is 0, because the host only queues these waits.
  double waited_seconds() const { return on_device_ ? 0 : waited_seconds_; }

  Communicator& communicator_;
  std::span<float> gradients_;

 private:
  void finish(std::span<double> counters) {
    reducer_.finish(counters);
    add_wait(reducer_.exposed_seconds());
  }

  GradientReducer reducer_;
  bool on_device_;
  bool is_summing_ = false;  // true in host memory between all_ready() and agree()
  double waited_seconds_ = 0;
};

// The base class of synchronizers whose ranks own parts of the weights. `trained` is the number of elements that are
// updated. The elements after them are summed on all ranks.
class OwnedSums : public RingSynchronizer {
 public:
  OwnedSums(Communicator& communicator, std::span<float> gradients, std::int64_t trained, std::int64_t bucket_elements,
            std::vector<OwnedRange> owners, bool on_device)
      : RingSynchronizer(communicator, gradients, bucket_elements, on_device,
                         [this](std::int64_t begin, std::int64_t end, const BeforeSum& before, PendingSums& pending) {
                           start_bucket(begin, end, before, pending);
                         }),
        trained_(trained),
        bucket_elements_(bucket_elements),
        owners_(std::move(owners)) {}

  UpdateShare update_share() override {
    return {.own = owned_by(communicator_.rank(), owners_),
            .sum = [this](std::span<double> values) { communicator_.sum(values); },
            .gather = [this](std::span<float> values, std::int64_t begin) { gather(values, begin); }};
  }
  void share(Vector& weights) override {
    const double begin = now_seconds();
    PendingSums pending;
    start_sharing(part(weights.all(), {0, trained_}), pending);
    for (; !pending.empty(); pending.pop_front()) pending.front()->finish();
    add_wait(now_seconds() - begin);
  }

 protected:
  // Begins the sums of [begin, end), which is a part of the trained elements.
  virtual void start_sums(std::int64_t begin, std::int64_t end, PendingSums& pending) = 0;
  // Begins to send the elements of every owner to all ranks.
  virtual void start_sharing(std::span<float> weights, PendingSums& pending) = 0;

  std::int64_t trained_, bucket_elements_;
  std::vector<OwnedRange> owners_;

 private:
  // The elements after the trained ones are batch norm's statistics and AdaScale's norms. All ranks need their sums.
  void start_bucket(std::int64_t begin, std::int64_t end, const BeforeSum& before, PendingSums& pending) {
    if (before) before(0);
    const std::int64_t trained_end = std::clamp(trained_, begin, end);
    if (begin < trained_end) start_sums(begin, trained_end, pending);
    if (trained_end < end) pending.push_back(communicator_.start_sum(part(gradients_, {trained_end, end})));
  }
  // Every owner sends its elements to all ranks. `values` is in host memory, even if the ranks use devices.
  void gather(std::span<float> values, std::int64_t begin) {
    for (const auto& [elements, rank] : owners_) {
      const std::int64_t from = std::max(begin, elements.begin),
                         to = std::min(begin + std::ssize(values), elements.end);
      if (from < to) communicator_.broadcast(std::as_writable_bytes(part(values, {from - begin, to - begin})), rank);
    }
  }
};

// A ring with a sharded optimizer state (parallel.shard_state; ZeRO stage 1, Rajbhandari et al. 2020). A reduce-scatter
// leaves the sums of each bucket on the ranks that own its pieces. After the update the pieces are gathered.
class ShardedSynchronizer final : public OwnedSums {
 public:
  using OwnedSums::OwnedSums;

 private:
  void start_sums(std::int64_t begin, std::int64_t end, PendingSums& pending) override {
    pending.push_back(communicator_.start_reduce_scatter(part(gradients_, {begin, end}), piece(begin, end)));
  }
  void start_sharing(std::span<float> weights, PendingSums& pending) override {
    for (std::int64_t begin = 0; begin < trained_; begin += bucket_elements_) {
      const std::int64_t end = std::min(begin + bucket_elements_, trained_);
      pending.push_back(communicator_.start_all_gather(part(weights, {begin, end}), piece(begin, end)));
    }
  }
  std::int64_t piece(std::int64_t begin, std::int64_t end) const {
    return shard_piece(end - begin, communicator_.size());
  }
};

// Synchronous parameter servers. The servers are the ranks that own elements, and all ranks are workers. Each full
// bucket is sent to its owners and added there (Communicator::start_root_sum()). After the update the owners send the
// weights to all ranks.
class ServerSynchronizer final : public OwnedSums {
 public:
  using OwnedSums::OwnedSums;
  double server_seconds() const override { return waited_seconds(); }

 private:
  void start_sums(std::int64_t begin, std::int64_t end, PendingSums& pending) override {
    for (const auto& [elements, rank] : owners_) {
      const std::int64_t from = std::max(begin, elements.begin), to = std::min(end, elements.end);
      if (from < to) pending.push_back(communicator_.start_root_sum(part(gradients_, {from, to}), rank));
    }
  }
  void start_sharing(std::span<float> weights, PendingSums& pending) override {
    for (const auto& [elements, rank] : owners_)
      pending.push_back(communicator_.start_broadcast(part(weights, elements), rank));
  }
};

// The synchronizer of a pipeline. Each stage sums its gradients over the replicas by a ring, and all ranks sum the
// counters. `all` connects every rank.
class StageSynchronizer final : public RingSynchronizer {
 public:
  StageSynchronizer(Communicator& all, StageRanks& stages, std::span<float> gradients, std::int64_t bucket_elements,
                    bool on_device)
      : RingSynchronizer(stages.over_replicas(), gradients, bucket_elements, on_device), all_(all), stages_(stages) {}

  void agree(std::span<double> counters) override {
    end_sums({});
    all_.sum(counters);
  }
  UpdateShare update_share() override { return stages_.share(); }

 private:
  Communicator& all_;
  StageRanks& stages_;
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

// Chooses the Synchronizer that an experiment asks for. No other file makes this choice.
std::unique_ptr<Synchronizer> make_synchronizer(const ParallelConfig& parallel, Communicator& communicator,
                                                StageRanks* stages, std::span<float> gradients, std::int64_t trained,
                                                std::int64_t bucket_elements, bool on_device) {
  if (stages != nullptr)
    return std::make_unique<StageSynchronizer>(communicator, *stages, gradients, bucket_elements, on_device);
  std::vector<OwnedRange> all = owners(parallel, trained, bucket_elements, communicator.size());
  if (all.empty()) return std::make_unique<RingSynchronizer>(communicator, gradients, bucket_elements, on_device);
  if (servers_work(parallel))
    return std::make_unique<ServerSynchronizer>(communicator, gradients, trained, bucket_elements, std::move(all),
                                                on_device);
  return std::make_unique<ShardedSynchronizer>(communicator, gradients, trained, bucket_elements, std::move(all),
                                               on_device);
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
