// A GPU made of host memory: runs every kernel (emulated), every DnnOperation and every RnnOperation (by loops), in any
// order that streams and events allow, records every call, and looks for accesses that nothing orders, for addresses
// that nobody allocated and for writes behind an allocation's end. As on a GPU, a command that goes wrong (an illegal
// address, a kernel that hangs) leaves the device unusable: every later call throws until a new one is made.
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
    other,  // give_work()
    record,
    wait,
    begin_capture,
    end_capture,
    graph
  };
  Kind kind = Kind::kernel;
  std::size_t stream = 0;
  std::string name;                  // of the kernel, the plan's key, the copy's direction
  std::vector<std::byte> arguments;  // sizes, and addresses as they were given
  std::vector<Region> regions;
  std::uintptr_t handle = 0;  // of an event or a captured graph
  bool captured = false;      // recorded into a graph instead of run
  bool adds_order = false;    // a wait for what neither its stream nor the host has waited for
  double seconds = 0;         // by HostDevice::time()'s model
  bool same_work(const Call& other) const {
    return kind == other.kind && stream == other.stream && name == other.name && arguments == other.arguments &&
           handle == other.handle;
  }
};

struct HostDeviceOptions {
  RunOrder order = {};
  // Why there is no plan; "": there is one.
  std::function<std::string(const DnnOperation&)> refuse_dnn = {};
  std::function<std::string(const RnnOperation&)> refuse_rnn = {};
  std::int64_t memory_bytes = std::int64_t{1} << 32;
  bool check_races = true;  // an unordered access throws at the call that makes it
  // Every command runs with NaNs in all memory but what its regions name, and may write nowhere else: checks the
  // regions themselves. Slow.
  bool isolate_commands = false;
  // time() runs its work and answers from a model: per command 3 us, and the longer of its bytes at 4 TB/s and its
  // operations at 500 TFlop/s. Without it, time() says that this device cannot time.
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
  void record(Event event, Stream stream) override;
  void wait(Stream stream, Event event) override;
  bool done(Event event) override;
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

  // ---- For tests -------------------------------------------------------------------------------------------------

  // All calls but those inside captures; what a launched graph holds is in calls_of().
  const std::vector<Call>& calls() const { return calls_; }
  const std::vector<Call>& calls_of(CapturedGraph graph) const { return graphs_.at(graph.handle).calls; }
  void clear_calls() { calls_.clear(); }
  // Kernels, plans and copies in the order of the calls, those inside launched graphs in their place.
  std::vector<Call> flat_calls() const;
  // Plants a fault.
  std::function<bool(const Call&)> skip;  // true: the call is lost

  // Work of a library that is given the stream itself (NCCL), with the memory that it reads and writes. `ready`: see
  // CommandQueues::give().
  void give_work(Stream stream, const std::string& name, std::vector<Region> regions, std::function<void()> work,
                 std::function<bool()> ready = {});

  void finish_all();  // the host waits for everything
  void go_on() { queues_.run_ready(); }  // the host does something else meanwhile
  // Fills memory with NaNs of every type, in a stream: nobody may read it before it is written again.
  void poison(const std::vector<Region>& memory, Stream stream);
  void poison(void* memory, std::int64_t bytes);  // at once; the host waits for everything first
  void check_guards() const;                      // throws Error when something wrote around an allocation
  struct Allocation {
    std::string what;
    std::int64_t bytes = 0;
  };
  const std::map<std::uintptr_t, Allocation>& allocations() const { return allocations_; }
  std::int64_t host_bytes() const;  // by allocate_host(), now

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
    bool of_device = true;  // an error of it breaks the device; false: of a library's own work
    std::function<bool()> ready = {};
  };
  struct Graph {
    std::vector<Call> calls;
    std::vector<Node> nodes;
  };

  // Records the call and gives its work to the stream, or to the graph that is being captured.
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
  std::string broken_;  // what made the device unusable
  double seconds_ = 0;  // of all commands so far
  DeviceFacts facts_;
  CommandQueues queues_;
  RaceCheck races_;
  std::vector<Clock> clocks_;  // per stream: what its next command knows to be done
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
