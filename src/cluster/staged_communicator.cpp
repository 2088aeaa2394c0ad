// Collectives of device memory through host memory: make_staged_communicator() of device_communicator.h.
#include <algorithm>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cluster/device_communicator.h"
#include "cluster/waiting.h"

namespace ringtrain {
namespace {

using cuda::CopyKind;

class StagedNormTeam final : public DeviceNormTeam {
 public:
  StagedNormTeam(cuda::Device& device, std::unique_ptr<NormTeam> host, std::function<void()> poll)
      : DeviceNormTeam(std::move(host)), device_(device), poll_(std::move(poll)), here_(device.make_event()) {}
  ~StagedNormTeam() override {
    if (staged_ != nullptr) device_.release_host(staged_);
  }
  StagedNormTeam(const StagedNormTeam&) = delete;
  StagedNormTeam& operator=(const StagedNormTeam&) = delete;

  void gather_on_device(std::span<float> parts, std::uintptr_t handle) override {
    const cuda::Stream stream{handle};
    const auto bytes = static_cast<std::int64_t>(parts.size_bytes()), part = bytes / size();
    grow(bytes, stream);
    const std::size_t length = parts.size() / static_cast<std::size_t>(size()),
                      own = static_cast<std::size_t>(rank()) * length;
    device_.copy(staged_ + own, parts.data() + own, part, CopyKind::to_host, stream);
    wait(stream);
    values_.resize(parts.size());
    std::copy_n(staged_ + own, length, values_.begin() + static_cast<std::ptrdiff_t>(own));
    host_->gather(values_, poll_);
    std::ranges::transform(values_, staged_, [](double value) { return static_cast<float>(value); });
    device_.copy(parts.data(), staged_, bytes, CopyKind::to_device, stream);
  }

 private:
  void wait(cuda::Stream stream) {
    device_.record(here_, stream);
    device_.synchronize(here_, poll_);
  }
  void grow(std::int64_t bytes, cuda::Stream stream) {
    if (bytes <= bytes_) return;
    wait(stream);  // the previous exchange may still read staged_
    if (staged_ != nullptr) device_.release_host(std::exchange(staged_, nullptr));
    staged_ = static_cast<float*>(device_.allocate_host(bytes));
    bytes_ = bytes;
  }

  cuda::Device& device_;
  std::function<void()> poll_;
  cuda::Event here_;
  float* staged_ = nullptr;  // page-locked
  std::int64_t bytes_ = 0;
  std::vector<double> values_;
};

}  // namespace

std::unique_ptr<DeviceNormTeam> make_staged_norm_team(cuda::Device& device, std::unique_ptr<NormTeam> host,
                                                      std::function<void()> poll) {
  return std::make_unique<StagedNormTeam>(device, std::move(host), std::move(poll));
}

namespace {

struct StagedVector {
  float* memory = nullptr;
  std::int64_t count = 0;
  float* staged = nullptr;  // page-locked copy of the same length
};

// A sum that is on its way to the host, in the inner collective (`sum`), or on its way back (`returning`).
struct StagedSum {
  std::span<float> values, staged;
  SumRange up;                                                      // elements that are copied back
  std::function<std::unique_ptr<Pending>(std::span<float>)> start;  // the inner collective
  float* borrowed = nullptr;                                        // from spare_; null: not borrowed
  cuda::Event ready, here, back;
  std::unique_ptr<Pending> sum;
  bool returning = false, ended = false;
};

class StagedCommunicator final : public HostedCommunicator<StagedVector> {
 public:
  StagedCommunicator(cuda::Device& device, Communicator& host)
      : HostedCommunicator(device, host), down_(device.make_stream(true)), up_(device.make_stream(true)) {}
  ~StagedCommunicator() override {
    for (const auto& run : running_) run->sum.reset();  // sums must end before the inner communicator does
    while (!allocations_.empty()) release(allocations_.back().memory);
    for (const auto& [memory, count] : borrowable_) device_.release_host(memory);
  }

  std::string describe() const override { return cat("through host memory: ", host_.describe()); }
  std::map<std::string, std::string> record() const override { return {{"staged", host_.describe()}}; }
  using HostedCommunicator::start_sum;
  std::unique_ptr<Pending> start_sum(std::span<float> values, const BeforeSum& before) override {
    if (values.empty()) return host_.start_sum(values, before);
    if (find(values) == nullptr)
      throw Error("the values of a sum through host memory are not in memory from allocate()");
    return start(values, {0, values.size()}, {0, values.size()}, before,
                 [this](std::span<float> staged) { return host_.start_sum(staged); });
  }
  std::unique_ptr<Pending> start_reduce_scatter(std::span<float> values, std::int64_t piece,
                                                const BeforeSum& before) override {
    return start(values, {0, values.size()}, piece_of_rank(values, piece), before,
                 [this, piece](std::span<float> staged) { return host_.start_reduce_scatter(staged, piece); });
  }
  std::unique_ptr<Pending> start_all_gather(std::span<float> values, std::int64_t piece) override {
    return start(values, piece_of_rank(values, piece), {0, values.size()}, {},
                 [this, piece](std::span<float> staged) { return host_.start_all_gather(staged, piece); });
  }
  std::unique_ptr<Pending> start_root_sum(std::span<float> values, int root, const BeforeSum& before) override {
    return start(values, {0, values.size()}, {0, rank() == root ? values.size() : 0}, before,
                 [this, root](std::span<float> staged) { return host_.start_root_sum(staged, root); });
  }
  std::unique_ptr<Pending> start_broadcast(std::span<float> values, int root) override {
    const SumRange all{0, values.size()}, none{};
    return start(values, rank() == root ? all : none, rank() == root ? none : all, {},
                 [this, root](std::span<float> staged) { return host_.start_broadcast(staged, root); });
  }
  void broadcast_vector(std::span<float> values, int root) override {
    std::vector<float> on_host(values.size());
    const auto bytes = static_cast<std::int64_t>(values.size_bytes());
    const cuda::Stream compute = device_.compute_stream();
    const cuda::Event copied = events_.take();
    if (rank() == root) {
      device_.copy(on_host.data(), values.data(), bytes, CopyKind::to_host, compute);
      device_.record(copied, compute);
      device_.synchronize(copied, [] {});
    }
    host_.broadcast(std::as_writable_bytes(std::span(on_host)), root);
    if (rank() != root) {
      device_.copy(values.data(), on_host.data(), bytes, CopyKind::to_device, compute);
      device_.record(copied, compute);
      device_.synchronize(copied, [] {});  // the copy reads on_host, which ends here
    }
    events_.put_back({copied});
  }
  void* allocate(std::int64_t bytes) override {
    if (bytes <= 0) return nullptr;
    allocations_.push_back({.memory = static_cast<float*>(device_.allocate(bytes, "gradients")),
                            .count = bytes / static_cast<std::int64_t>(sizeof(float)),
                            .staged = static_cast<float*>(device_.allocate_host(bytes))});
    return allocations_.back().memory;
  }
  void release(void* memory) override {
    StagedVector a;
    if (!take_out(memory, a)) return;
    device_.release_host(a.staged);
    device_.release(a.memory);
  }
  void poll() override {
    if (!aborted_) progress();
  }
  void abort(const std::string&) override { aborted_ = true; }

 private:
  class StagedPending final : public Pending {
   public:
    StagedPending(StagedCommunicator& communicator, std::shared_ptr<const StagedSum> run)
        : communicator_(communicator), run_(std::move(run)) {}
    bool done() override {
      communicator_.progress();
      return run_->ended;
    }
    void finish() override {
      communicator_.progress();
      for (Waiter waiter; !run_->returning; communicator_.progress()) waiter.pause();
      cuda::Device& device = communicator_.device_;
      if (!run_->ended) device.wait(device.compute_stream(), run_->back);
    }

   private:
    StagedCommunicator& communicator_;
    std::shared_ptr<const StagedSum> run_;
  };

  using Start = std::function<std::unique_ptr<Pending>(std::span<float>)>;
  // Copies `down` to the host, gives all values there to `start`, and copies `up` back.
  std::unique_ptr<Pending> start(std::span<float> values, SumRange down, SumRange up, const BeforeSum& before,
                                 Start start) {
    const auto added = std::make_shared<StagedSum>();
    StagedSum& run = *added;
    run.values = values;
    run.staged = staging_of(values, run.borrowed);
    run.up = up;
    run.start = std::move(start);
    run.ready = events_.take();
    run.here = events_.take();
    run.back = events_.take();
    running_.push_back(added);
    device_.record(run.ready, device_.compute_stream());
    device_.wait(down_, run.ready);
    if (before) before(down_.handle);
    if (down.size() > 0)
      device_.copy(run.staged.data() + down.begin, values.data() + down.begin,
                   static_cast<std::int64_t>(down.size() * sizeof(float)), CopyKind::to_host, down_);
    device_.record(run.here, down_);
    return std::make_unique<StagedPending>(*this, added);
  }
  // Steps use the same vectors again, so only the first step allocates memory.
  std::span<float> staging_of(std::span<float> values, float*& borrowed) {
    if (const StagedVector* a = find(values)) return {a->staged + (values.data() - a->memory), values.size()};
    auto free = std::ranges::find_if(spare_, [&](const auto& one) { return one.second == values.size(); });
    if (free == spare_.end()) {
      auto* const memory = static_cast<float*>(device_.allocate_host(static_cast<std::int64_t>(values.size_bytes())));
      borrowable_.emplace_back(memory, values.size());
      free = spare_.insert(spare_.end(), borrowable_.back());
    }
    borrowed = free->first;
    spare_.erase(free);
    return {borrowed, values.size()};
  }
  SumRange piece_of_rank(std::span<float> values, std::int64_t piece) const {
    check_pieces(values, piece);
    const std::size_t length = static_cast<std::size_t>(piece),
                      begin = std::min(values.size(), static_cast<std::size_t>(rank()) * length);
    return {begin, std::min(values.size(), begin + length)};
  }
  // The inner sums start in the order of start_sum(), even if later values arrive first: all ranks need the same order.
  void progress() {
    for (const auto& one : running_) {
      StagedSum& run = *one;
      if (run.sum == nullptr && !run.returning) {
        if (!device_.done(run.here)) break;
        run.sum = run.start(run.staged);
      }
      if (run.sum != nullptr && run.sum->done()) give_back(run);
    }
    for (; !running_.empty() && running_.front()->returning; running_.pop_front()) {
      StagedSum& run = *running_.front();
      if (!device_.done(run.back)) break;
      if (run.borrowed != nullptr) spare_.emplace_back(run.borrowed, run.values.size());
      events_.put_back({run.ready, run.here, run.back});
      run.ended = true;
    }
  }
  void give_back(StagedSum& run) {
    run.sum.reset();
    if (run.up.size() > 0)
      device_.copy(run.values.data() + run.up.begin, run.staged.data() + run.up.begin,
                   static_cast<std::int64_t>(run.up.size() * sizeof(float)), CopyKind::to_device, up_);
    device_.record(run.back, up_);
    run.returning = true;
  }

  // One stream per direction, so that copies back do not wait for buckets that are not final.
  cuda::Stream down_, up_;
  bool aborted_ = false;
  std::deque<std::shared_ptr<StagedSum>> running_;  // in the order of their start
  cuda::EventPool events_{device_};
  // Page-locked buffers for vectors that allocate() did not give, such as weights, each with its number of elements.
  // spare_ has the buffers that are free now, borrowable_ has all of them.
  std::vector<std::pair<float*, std::size_t>> spare_, borrowable_;
};

}  // namespace

std::unique_ptr<DeviceCommunicator> make_staged_communicator(cuda::Device& device, Communicator& host) {
  return std::make_unique<StagedCommunicator>(device, host);
}

}  // namespace ringtrain
