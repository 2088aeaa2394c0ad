// A GPU made of host memory. It runs every kernel (emulated), every DnnOperation and every RnnOperation (by loops), in
// any order that streams and events allow, and records every call. It finds accesses that nothing orders, addresses
// that nobody allocated, and writes around an allocation. As on a GPU, a command that fails (an illegal
// address, a kernel that hangs) leaves the device unusable: every later call throws Error until a new device is made.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"
#include "tests/emulation/command_queue.h"
#include "tests/emulation/race_check.h"

namespace ringtrain::cuda {

struct Call {
  enum class Kind {
    kernel,
    dnn,
    rnn_forward,
    rnn_backward,
    copy,
    zero,
    other,  // work given by give_work()
    record,
    wait,
    begin_capture,
    end_capture,
    graph
  };
  Kind kind = Kind::kernel;
  std::size_t stream = 0;
  std::string name;                  // the kernel's name, the plan's key or the copy's direction
  std::vector<std::byte> arguments;  // sizes, and addresses as the caller gave them
  std::vector<Region> regions;
  std::uintptr_t handle = 0;  // an event or a captured graph
  bool captured = false;      // recorded into a graph, not run
  bool adds_order = false;    // a wait for something that neither its stream nor the host has waited for
  double seconds = 0;         // by the model of HostDevice::time()
  bool same_work(const Call& other) const {
    return kind == other.kind && stream == other.stream && name == other.name && arguments == other.arguments &&
           handle == other.handle;
  }
};

struct HostDeviceOptions {
  RunOrder order = {};
  // Returns the reason why there is no plan, or "" if there is one. Without a function there is a plan for every
  // operation.
  std::function<std::string(const DnnOperation&)> refuse_dnn = {};
  std::function<std::string(const RnnOperation&)> refuse_rnn = {};
  std::int64_t memory_bytes = std::int64_t{1} << 32;
  bool check_races = true;  // an unordered access throws Error at the call that makes it
  // Each command runs with NaNs in all memory outside its regions, and may not write there. This checks that the
  // regions are right. It is slow.
  bool isolate_commands = false;
  // time() runs its work and returns the seconds of a model. A command takes 3 us plus the longer of its bytes at 4
  // TB/s and its operations at 500 TFlop/s. Without `times`, time() says that this device cannot time.
  bool times = false;
};

class HostDevice : public Device {
 public:
  explicit HostDevice(HostDeviceOptions options = {});
  ~HostDevice() override;
  const DeviceFacts& facts() const override { return facts_; }

  void* allocate(std::int64_t bytes, const std::string& what) override;
  void release(void* memory) override;
  void* allocate_host(std::int64_t bytes) override;
  void release_host(void* memory) override;
  void pin(void* memory, std::int64_t bytes) override;
  void unpin(void* memory) override;
  std::int64_t allocated_bytes() const override { return allocated_; }

  Stream compute_stream() override { return {1}; }
  Stream make_stream(bool high_priority) override;
  Event make_event() override;
  Event make_timed_event() override { return make_event(); }
  void record(Event event, Stream stream) override;
  void wait(Stream stream, Event event) override;
  bool done(Event event) override;
  double seconds_between(Event begin, Event end) override;  // by the host's clock, when the events have happened
  void synchronize(Event event, const std::function<void()>& poll) override;

  void copy(void* to, const void* from, std::int64_t bytes, CopyKind kind, Stream stream) override;
  void zero(void* memory, std::int64_t bytes, Stream stream) override;
  void launch(const KernelLaunch& launch, Stream stream) override;
  const DnnPlan* plan(const DnnOperation& operation, std::string* why = nullptr) override;
  void run(const DnnPlan& plan, std::span<void* const> tensors, void* workspace, Stream stream) override;
  const RnnPlan* plan(const RnnOperation& operation, std::string* why = nullptr) override;
  void run_forward(const RnnPlan& plan, const RnnForward& arguments, Stream stream) override;
  void run_backward(const RnnPlan& plan, const RnnBackward& arguments, Stream stream) override;

  void begin_capture(Stream stream) override;
  CapturedGraph end_capture(Stream stream) override;
  void launch(CapturedGraph graph, Stream stream) override;
  double time(const std::function<void(Stream)>& work, int repetitions) override;
  std::string why_unusable() override;

  // ---- For tests -------------------------------------------------------------------------------------------------

  // All calls, without those inside captures. calls_of() has the calls of a captured graph.
  const std::vector<Call>& calls() const { return calls_; }
  const std::vector<Call>& calls_of(CapturedGraph graph) const { return graphs_.at(graph.handle).calls; }
  void clear_calls() { calls_.clear(); }
  // All calls in their order, except the beginnings and ends of captures. The calls of a launched graph stand at the
  // place of its launch.
  std::vector<Call> flat_calls() const;
  // Plants a fault. The call is lost when `skip` returns true for it.
  std::function<bool(const Call&)> skip;

  // Gives the work of a library that takes the stream itself (NCCL), with the memory that the work reads and writes.
  // CommandQueues::give() describes `ready`.
  void give_work(Stream stream, const std::string& name, std::vector<Region> regions, std::function<void()> work,
                 std::function<bool()> ready = {});

  void finish_all();                     // the host waits for all work
  void go_on() { queues_.run_ready(); }  // lets work go on while the host is busy
  // Fills memory with NaNs of every type, in a stream. Any read before the next write then gives NaN.
  void poison(const std::vector<Region>& memory, Stream stream);
  void poison(void* memory, std::int64_t bytes);  // at once, after the host has waited for all work
  void check_guards() const;                      // throws Error when something has written around an allocation
  struct Allocation {
    std::string what;
    std::int64_t bytes = 0;
  };
  const std::map<std::uintptr_t, Allocation>& allocations() const { return allocations_; }
  std::int64_t host_bytes() const;  // bytes that allocate_host() gave and that are not released

 private:
  struct Plan;
  struct RecurrentPlan;
  struct EventState {
    std::shared_ptr<CommandQueues::Recording> latest;
    Clock clock;
  };
  struct Node {
    std::string name;
    std::vector<Region> regions;
    std::function<void()> work;
    bool of_device = true;  // an error breaks the device; false for a library's own work
    std::function<bool()> ready = {};
  };
  struct Graph {
    std::vector<Call> calls;
    std::vector<Node> nodes;
  };

  // Records the call. Gives its work to the stream, or to the graph that is being captured.
  void give(Call call, std::function<void()> work, std::function<bool()> ready = {});
  void enqueue(std::size_t stream, const std::vector<Node>& nodes);
  void run(const Node& node);
  void run_isolated(const Node& node) const;
  void check_addresses(const Call& call);
  void check_usable() const;
  bool owned(const Region& region) const;
  bool pinned(const void* memory, std::int64_t bytes) const;
  void host_knows(const Clock& clock) { join(host_, clock); }
  void forbid_in_capture(const char* what) const;
  std::size_t index(Stream stream) const;
  EventState& state(Event event);
  bool lost(const Call& call) const { return skip && skip(call); }

  HostDeviceOptions options_;
  std::string broken_;  // the error that made the device unusable
  double seconds_ = 0;  // total of all commands so far
  DeviceFacts facts_;
  CommandQueues queues_;
  RaceCheck races_;
  std::vector<Clock> clocks_;  // per stream: the commands that are known to be done when its next command runs
  Clock host_;
  std::vector<EventState> events_;
  std::map<std::uintptr_t, Allocation> allocations_;
  std::map<std::uintptr_t, std::int64_t> host_allocations_, pinned_;
  std::int64_t allocated_ = 0;
  std::map<std::string, std::unique_ptr<Plan>> plans_;
  std::map<std::string, std::unique_ptr<RecurrentPlan>> recurrent_plans_;
  std::vector<Call> calls_;
  std::map<std::uintptr_t, Graph> graphs_;
  bool capturing_ = false;
  std::size_t capture_stream_ = 0;
  Graph capture_;
};

}  // namespace ringtrain::cuda
