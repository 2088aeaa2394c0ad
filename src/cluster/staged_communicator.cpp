#include "cluster/staged_communicator.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "base/error.h"
#include "cluster/waiting.h"

namespace ringtrain {
namespace {

using cuda::CopyKind;

class StagedCommunicator final : public DeviceCommunicator {
 public:
  StagedCommunicator(cuda::Device& device, Communicator& host)
      : device_(device), host_(host), down_(device.make_stream(true)), up_(device.make_stream(true)) {}
  ~StagedCommunicator() override;

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  std::string describe() const override { return cat("through host memory: ", host_.describe()); }
  std::map<std::string, std::string> record() const override { return {{"staged", host_.describe()}}; }
  std::unique_ptr<Pending> start_sum(std::span<float> values, const BeforeSum& before) override;
  std::unique_ptr<Pending> start_sum(std::span<double> values) override { return host_.start_sum(values); }
  void broadcast(std::span<std::byte> bytes, int root) override { host_.broadcast(bytes, root); }
  void broadcast_vector(std::span<float> values, int root) override;
  void gather(std::span<const float> mine, std::span<float> all, int root) override { host_.gather(mine, all, root); }
  void scatter(std::span<const float> all, std::span<float> mine, int root) override { host_.scatter(all, mine, root); }
  void barrier() override { host_.barrier(); }
  void* allocate(std::int64_t bytes) override;
  void release(void* memory) override;
  void poll() override {
    if (aborted_) return;
    progress();
    host_.poll();
  }
  void abort(const std::string& why) override {
    aborted_ = true;
    host_.abort(why);
  }

  bool done(std::int64_t number);
  void finish(std::int64_t number);

 private:
  struct Allocation {
    float* memory = nullptr;
    std::int64_t count = 0;
    float* staged = nullptr;  // page-locked, as long as `memory`
  };
  // A sum in the order of starting: on its way to the host, in the ring (`sum`), on its way back (`returning`).
  struct Running {
    std::span<float> values, staged;
    cuda::Event ready, here, back;
    std::unique_ptr<Pending> sum;
    bool returning = false;
  };

  void progress();
  const Allocation& owner(std::span<float> values) const;
  void give_back(Running& run);
  cuda::Event event();

  cuda::Device& device_;
  Communicator& host_;
  cuda::Stream down_, up_;  // one way each: a bucket that comes back does not queue behind one that is not final
  std::vector<Allocation> allocations_;
  std::deque<Running> running_;
  std::int64_t ended_ = 0;  // running_[i] is number ended_ + i
  bool aborted_ = false;
  std::vector<cuda::Event> free_events_;
};

class PendingStagedSum final : public Pending {
 public:
  PendingStagedSum(StagedCommunicator& communicator, std::int64_t number)
      : communicator_(communicator), number_(number) {}
  bool done() override { return communicator_.done(number_); }
  void finish() override { communicator_.finish(number_); }

 private:
  StagedCommunicator& communicator_;
  std::int64_t number_;
};

StagedCommunicator::~StagedCommunicator() {
  running_.clear();  // sums of the inner communicator end with it or before
  while (!allocations_.empty()) release(allocations_.back().memory);
}

cuda::Event StagedCommunicator::event() {
  if (free_events_.empty()) return device_.make_event();
  const cuda::Event event = free_events_.back();
  free_events_.pop_back();
  return event;
}

void* StagedCommunicator::allocate(std::int64_t bytes) {
  if (bytes <= 0) return nullptr;
  Allocation a;
  a.count = bytes / static_cast<std::int64_t>(sizeof(float));
  a.memory = static_cast<float*>(device_.allocate(bytes, "gradients"));
  a.staged = static_cast<float*>(device_.allocate_host(bytes));
  allocations_.push_back(a);
  return a.memory;
}

void StagedCommunicator::release(void* memory) {
  const auto a =
      std::ranges::find(allocations_, memory, [](const Allocation& x) { return static_cast<void*>(x.memory); });
  if (a == allocations_.end()) return;
  device_.release_host(a->staged);
  device_.release(a->memory);
  allocations_.erase(a);
}

const StagedCommunicator::Allocation& StagedCommunicator::owner(std::span<float> values) const {
  for (const Allocation& a : allocations_)
    if (values.data() >= a.memory && values.data() + values.size() <= a.memory + a.count) return a;
  throw Error("a sum through host memory of memory that allocate() did not give");
}

std::unique_ptr<Pending> StagedCommunicator::start_sum(std::span<float> values, const BeforeSum& before) {
  const std::int64_t number = ended_ + std::ssize(running_);
  if (values.empty()) return host_.start_sum(values, before);
  const Allocation& a = owner(values);
  Running& run = running_.emplace_back();
  run.values = values;
  run.staged = {a.staged + (values.data() - a.memory), values.size()};
  run.ready = event();
  run.here = event();
  run.back = event();
  device_.record(run.ready, device_.compute_stream());
  device_.wait(down_, run.ready);
  if (before) before(down_.handle);
  device_.copy(run.staged.data(), values.data(), static_cast<std::int64_t>(values.size_bytes()), CopyKind::to_host,
               down_);
  device_.record(run.here, down_);
  return std::make_unique<PendingStagedSum>(*this, number);
}

// The inner sums start in the order of start_sum(), which is the same on all ranks, whatever arrives first.
void StagedCommunicator::progress() {
  for (Running& run : running_) {
    if (run.sum == nullptr && !run.returning) {
      if (!device_.done(run.here)) break;
      run.sum = host_.start_sum(run.staged);
    }
    if (run.sum != nullptr && run.sum->done()) give_back(run);
  }
  while (!running_.empty() && running_.front().returning && device_.done(running_.front().back)) {
    const Running& run = running_.front();
    free_events_.insert(free_events_.end(), {run.ready, run.here, run.back});
    running_.pop_front();
    ++ended_;
  }
}

void StagedCommunicator::give_back(Running& run) {
  run.sum.reset();
  device_.copy(run.values.data(), run.staged.data(), static_cast<std::int64_t>(run.values.size_bytes()),
               CopyKind::to_device, up_);
  device_.record(run.back, up_);
  run.returning = true;
}

bool StagedCommunicator::done(std::int64_t number) {
  progress();
  return number < ended_;
}

void StagedCommunicator::finish(std::int64_t number) {
  const auto returning = [&] {
    progress();
    return number < ended_ || running_[static_cast<std::size_t>(number - ended_)].returning;
  };
  for (Waiter waiter; !returning(); waiter.pause()) host_.poll();
  if (number >= ended_)
    device_.wait(device_.compute_stream(), running_[static_cast<std::size_t>(number - ended_)].back);
}

void StagedCommunicator::broadcast_vector(std::span<float> values, int root) {
  std::vector<float> on_host(values.size());
  const auto bytes = static_cast<std::int64_t>(values.size_bytes());
  const cuda::Stream compute = device_.compute_stream();
  const cuda::Event copied = event();
  if (rank() == root) {
    device_.copy(on_host.data(), values.data(), bytes, CopyKind::to_host, compute);
    device_.record(copied, compute);
    device_.synchronize(copied, [] {});
  }
  host_.broadcast(std::as_writable_bytes(std::span(on_host)), root);
  if (rank() != root) {
    device_.copy(values.data(), on_host.data(), bytes, CopyKind::to_device, compute);
    device_.record(copied, compute);
    device_.synchronize(copied, [] {});  // the host's copy ends here
  }
  free_events_.push_back(copied);
}

}  // namespace

std::unique_ptr<DeviceCommunicator> make_staged_communicator(cuda::Device& device, Communicator& host) {
  return std::make_unique<StagedCommunicator>(device, host);
}

}  // namespace ringtrain
