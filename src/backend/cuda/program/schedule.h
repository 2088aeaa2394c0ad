// A Schedule holds the commands of a program in order, plans the memory that they use, and knows which command
// completes which gradients. A segment is a run of commands that are captured together as a CUDA graph, once per
// variant, and then replayed. It ends where a bucket of gradients is final, and before or after a command that must not
// be captured.
//
// A block of the model may be recomputed (Chen et al. 2016). Its forward commands are then issued
// again before its first backward command. What they write has two lifetimes: one in the forward pass, and one from the
// moment at which the commands are issued again. An offloaded activation (offload.cpp) has two lifetimes too: one until
// it has been copied out, and one from the copy back.
//
// A stage of a pipeline has several micro-batches in flight, each in a slot. What a forward command writes and a
// backward command reads exists once per slot (ArenaPlan). All other memory exists once. A segment is captured for each
// slot.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/types.h"
#include "nn/arena.h"

namespace ringtrain::cuda {

// The rates that GPUs reach give the least time that a command can take, and guesses where nothing is timed.
struct Rates {
  double bytes, flops;      // per second
  bool is_estimate = true;  // false: they were measured on GPUs of this name
};

// Returns the rate of copies between a GPU and page-locked memory of its host, in bytes per second and direction. It is
// about three quarters of the nominal rate of PCIe 4 x16 (A100: 32 GB/s) or PCIe 5 x16 (H100 and later: 64 GB/s).
double host_link_rate(int compute_capability);

// Returns the rates of memory and of matrix products for guesses, which must be the same on all GPUs of a compute
// capability. They are about three quarters of the numbers in the data sheets (A100, H200, B200). `compute_capability`
// is 90 for 9.0.
Rates rates_of(int compute_capability, Math math);

// Returns the rates that GPUs of this name have reached. The names of an H100 (80 GB HBM3) and of an H200 are known.
// For another GPU, or a part of one (MIG), it returns the estimate for its compute capability.
Rates rates_of(const DeviceFacts& device, Math math);

// Returns the least seconds for this work: the longer of its products and its memory traffic.
double bound_seconds(double flops, double bytes, const Rates& rates);

using Storage = int;  // a buffer of the schedule; -1: none

struct Access {
  Storage storage;
  bool write = false;
};

struct Command {
  std::string name;          // "layer1.0.conv1 data gradient"
  std::vector<Access> uses;  // storages below 0 are ignored
  // Queues the work in the stream. The function looks up addresses with Schedule::at(). `accumulate` is false in the
  // first micro-step of a step and true in the others.
  std::function<void(Device&, Stream, bool accumulate)> issue = {};
  std::vector<std::string> finishes = {};  // parameters whose gradients are final after this command
  double flops = 0, bytes = 0;  // for tables; when bytes is 0, plan() adds up the storages that the command uses
  std::string operation = {};   // cuDNN's operation and the number of its launches; empty: own kernels
  int block = -1;               // set by Schedule::enter()
  bool replayed = true;         // false: the arguments differ from pass to pass, so the command is never captured
};

// Returns a command that launches one kernel.
Command kernel_command(std::string name, std::vector<Access> uses, std::function<KernelLaunch(bool accumulate)> launch,
                       std::vector<std::string> finishes = {});

// What decides which activations are offloaded.
struct OffloadRates {
  Rates device;     // the device that runs the commands
  double link = 0;  // bytes a second in each direction
  double stretch = 1;
  double copy_seconds = 1e-5;                  // latency of a copy
  double command_seconds = 3e-6;               // overhead of every command
  std::int64_t least = std::int64_t{1} << 20;  // bytes; smaller activations stay
};

class Schedule {
 public:
  static constexpr std::int64_t alignment = 256;  // bytes; the alignment of cudaMalloc, and no kernel needs more

  explicit Schedule(int slots = 1) : slots_(slots) {}

  Storage buffer(std::string what, std::int64_t bytes);   // lives from its first to its last use
  Storage lasting(std::string what, std::int64_t bytes);  // lives for the whole run: copies of weights, input, sums
  // Lives for the whole run, once for each slot. It is for values that commands of both passes read and that must not
  // be recomputed.
  Storage per_slot(std::string what, std::int64_t bytes);
  void resize(Storage storage, std::int64_t bytes);  // before plan()
  std::int64_t bytes(Storage storage) const { return item(storage).bytes; }
  // All commands share one workspace. Its size is the largest that was asked for.
  void workspace(std::int64_t bytes);
  Storage workspace() const { return 0; }

  // The commands that are added from now on belong to this block of the model, which is recomputed. With -1 they belong
  // to no such block.
  void enter(int block) { block_ = block; }
  void add(Command command);
  void begin_backward();
  // The following commands refresh the program's copies of the weights after an update. They have segments of their
  // own.
  void begin_weights();

  // Offloads early activations to the host's memory. Call it before plan().
  void offload(const OffloadRates& rates);

  // Finds lifetimes, plans the arena and cuts the segments. A segment ends where a multiple of `segment_elements`
  // elements of the flat gradient vector becomes final, and where Command::replayed changes.
  void plan(const ParameterTable& table, std::int64_t segment_elements);
  const ArenaPlan& arena() const { return arena_; }
  void bind(char* base);
  // at() and run() use this slot from now on. Throws Error when there is no such slot.
  void select(int slot);
  int slot() const { return slot_; }
  int slots() const { return slots_; }
  // Returns the bytes of page-locked memory that offloaded activations need, and the predicted times of a pass of one
  // micro-batch; call it after plan(). When the bytes are not 0, bind_host() must be given that memory.
  const HostTraffic& host_traffic() const { return host_traffic_; }
  void bind_host(Device& device, std::byte* host);
  Stream offload_stream() const { return offload_stream_; }  // handle 0 when nothing is offloaded
  template <class T = void>
  T* at(Storage storage) const {
    return storage < 0 ? nullptr : reinterpret_cast<T*>(item(storage).base);
  }

  enum class Part { forward, backward, weights };
  // Runs the commands of a part. With graphs, the first run of a variant is a plain run, because libraries load some
  // code at the first call. The second run is captured and replayed, and later runs are replayed.
  void run(Device& device, Part part, bool accumulate, bool graphs, const BackwardHooks* hooks);
  // Forgets captured graphs. Call it when an address that the commands were given from outside has changed.
  void forget_captured(Part part);

  // Holds the state of a segment in one variant. A variant is a slot, with or without accumulation.
  struct Replay {
    int runs = 0;
    CapturedGraph captured = {};
  };
  struct Segment {
    Part part;
    std::size_t begin, end;      // commands
    std::int64_t watermark = 0;  // gradients [0, watermark) are final after this segment; backward only
    bool replayed = true;
    std::vector<Replay> replays = {};
  };
  // Describes a storage that is offloaded, and the commands between which it is not in the device's memory. The indices
  // of commands are those of the schedule without copies.
  struct Journey {
    Storage storage = -1;
    std::size_t written = 0;  // the last command of the forward pass that writes the storage
    std::size_t first_backward = 0;
    double seconds = 0;        // time of one copy
    std::size_t out_done = 0;  // this command waits until the copy out is done
    std::size_t back = 0;      // the copy back begins before this command
  };
  const std::vector<Command>& commands() const { return commands_; }
  const std::vector<Segment>& segments() const { return segments_; }

 private:
  struct Life {
    int first = -1, last = -1;  // commands
    Buffer place = {};
    char* base = nullptr;
  };
  struct Item {
    std::string what;
    std::int64_t bytes = 0;
    bool lasting = false, per_slot = false;
    Life lives[2] = {};
    int again = -1;        // command with which the second lifetime begins
    char* base = nullptr;  // address in the current lifetime
  };
  // Holds a storage that is offloaded. The four events say, in this order: its last write in the forward pass is done;
  // the copy out is done; its memory for the backward pass is free; the copy back is done.
  struct Travel {
    Storage storage = -1;
    std::int64_t host_offset = 0;
    Event written = {}, out = {}, free = {}, back = {};
  };
  Item& item(Storage storage) { return storages_[static_cast<std::size_t>(storage)]; }
  const Item& item(Storage storage) const { return storages_[static_cast<std::size_t>(storage)]; }
  Part part_of(std::size_t command) const;
  void insert_recomputation();
  void insert_offload();
  std::vector<Journey> possible_journeys(std::size_t end) const;
  std::vector<Journey> choose_journeys(std::size_t end);
  Command copy(std::size_t travel, bool out);
  Command wait_for_copy(std::size_t travel, bool out);
  void find_lifetimes();
  void place();                       // sets the addresses of the slot
  void live_at(std::size_t command);  // sets the addresses of the lifetimes at this command
  void count_bytes();
  void cut_segments(const std::vector<std::int64_t>& marks, std::int64_t segment_elements);
  void run_segment(Device& device, Segment& segment, bool accumulate, bool graphs, const BackwardHooks* hooks);

  int slots_, slot_ = 0;
  char* base_ = nullptr;
  std::vector<Item> storages_ = {{"workspace", 0, true}};
  std::vector<Command> commands_;
  std::vector<Segment> segments_;
  std::size_t backward_ = static_cast<std::size_t>(-1), weights_ = static_cast<std::size_t>(-1);  // first commands
  int block_ = -1;
  ArenaPlan arena_{alignment};
  std::vector<bool> turns_;  // one per command: the second lifetime of a storage begins there
  bool offloads_ = false;
  OffloadRates offload_rates_ = {};
  HostTraffic host_traffic_ = {};
  std::vector<Travel> travels_;
  Stream offload_stream_ = {};
  std::byte* host_ = nullptr;
};

// Counts the bytes that a program's commands read and write in the device's memory, their operations, and the least
// time that they take.

// Holds the traffic of one pass of a micro-batch, and of the refresh of the program's own weights after an update.
struct Traffic {
  double forward_bytes = 0, backward_bytes = 0, weights_bytes = 0;
  double flops = 0;  // forward and backward pass
};

// Holds the least seconds of one pass of a micro-batch, forward and backward, and of the refresh of the program's own
// weights: the sum of the bounds of the commands, because they run one after the other. Blocks that are recomputed
// count twice.
struct LeastSeconds {
  double pass = 0, weights = 0;
};

// `schedule` must be planned.
Traffic traffic_of(const Schedule& schedule);
LeastSeconds least_seconds_of(const Schedule& schedule, const Rates& rates);

}  // namespace ringtrain::cuda
