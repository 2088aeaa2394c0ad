#include "cluster/staged_communicator.h"

#include <vector>

#include "base/error.h"
#include "cluster/queued_communicator.h"
#include "cluster/waiting.h"

namespace ringtrain {
namespace {

using cuda::CopyKind;

struct StagedVector {
  float* memory = nullptr;
  std::int64_t count = 0;
  float* staged = nullptr;  // page-locked, as long as `memory`
};

// On its way to the host, in the ring (`sum`), on its way back (`returning`).
struct StagedSum {
  std::span<float> values, staged;
  cuda::Event ready, here, back;
  std::unique_ptr<Pending> sum;
  bool returning = false;
};

class StagedCommunicator final : public QueuedCommunicator<StagedVector, StagedSum> {
 public:
  StagedCommunicator(cuda::Device& device, Communicator& host)
      : QueuedCommunicator(device, host), down_(device.make_stream(true)), up_(device.make_stream(true)) {}
  ~StagedCommunicator() override;

  std::string describe() const override { return cat("through host memory: ", host_.describe()); }
  std::map<std::string, std::string> record() const override { return {{"staged", host_.describe()}}; }
  using QueuedCommunicator::start_sum;
  std::unique_ptr<Pending> start_sum(std::span<float> values, const BeforeSum& before) override;
  void broadcast_vector(std::span<float> values, int root) override;
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

  bool done(std::int64_t number) override;
  void finish(std::int64_t number) override;

 private:
  void progress();
  void give_back(StagedSum& run);

  cuda::Stream down_, up_;  // one way each: a bucket that comes back does not queue behind one that is not final
  bool aborted_ = false;
};

StagedCommunicator::~StagedCommunicator() {
  running_.clear();  // sums of the inner communicator end with it or before
  while (!allocations_.empty()) release(allocations_.back().memory);
}

void* StagedCommunicator::allocate(std::int64_t bytes) {
  if (bytes <= 0) return nullptr;
  StagedVector a;
  a.count = bytes / static_cast<std::int64_t>(sizeof(float));
  a.memory = static_cast<float*>(device_.allocate(bytes, "gradients"));
  a.staged = static_cast<float*>(device_.allocate_host(bytes));
  allocations_.push_back(a);
  return a.memory;
}

void StagedCommunicator::release(void* memory) {
  StagedVector a;
  if (!take_out(memory, a)) return;
  device_.release_host(a.staged);
  device_.release(a.memory);
}

std::unique_ptr<Pending> StagedCommunicator::start_sum(std::span<float> values, const BeforeSum& before) {
  const std::int64_t number = next_number();
  if (values.empty()) return host_.start_sum(values, before);
  const StagedVector* a = find(values);
  if (a == nullptr) throw Error("a sum through host memory of memory that allocate() did not give");
  StagedSum& run = running_.emplace_back();
  run.values = values;
  run.staged = {a->staged + (values.data() - a->memory), values.size()};
  run.ready = event();
  run.here = event();
  run.back = event();
  device_.record(run.ready, device_.compute_stream());
  device_.wait(down_, run.ready);
  if (before) before(down_.handle);
  device_.copy(run.staged.data(), values.data(), static_cast<std::int64_t>(values.size_bytes()), CopyKind::to_host,
               down_);
  device_.record(run.here, down_);
  return pending(number);
}

// The inner sums start in the order of start_sum(), which is the same on all ranks, whatever arrives first.
void StagedCommunicator::progress() {
  for (StagedSum& run : running_) {
    if (run.sum == nullptr && !run.returning) {
      if (!device_.done(run.here)) break;
      run.sum = host_.start_sum(run.staged);
    }
    if (run.sum != nullptr && run.sum->done()) give_back(run);
  }
  while (!running_.empty() && running_.front().returning && device_.done(running_.front().back)) {
    const StagedSum& run = running_.front();
    reuse({run.ready, run.here, run.back});
    end_first();
  }
}

void StagedCommunicator::give_back(StagedSum& run) {
  run.sum.reset();
  device_.copy(run.values.data(), run.staged.data(), static_cast<std::int64_t>(run.values.size_bytes()),
               CopyKind::to_device, up_);
  device_.record(run.back, up_);
  run.returning = true;
}

bool StagedCommunicator::done(std::int64_t number) {
  progress();
  return ended(number);
}

void StagedCommunicator::finish(std::int64_t number) {
  const auto returning = [&] {
    progress();
    return ended(number) || running(number).returning;
  };
  for (Waiter waiter; !returning(); waiter.pause()) host_.poll();
  if (!ended(number)) device_.wait(device_.compute_stream(), running(number).back);
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
  reuse({copied});
}

}  // namespace

std::unique_ptr<DeviceCommunicator> make_staged_communicator(cuda::Device& device, Communicator& host) {
  return std::make_unique<StagedCommunicator>(device, host);
}

}  // namespace ringtrain
