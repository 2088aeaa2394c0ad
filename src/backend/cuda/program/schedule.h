// The commands of a program in order, the memory between them, and where gradients are final. Commands between two
// bucket boundaries are a segment; each segment is captured once per variant and replayed.
//
// A block may be recomputed (Chen et al. 2016): what its forward commands write lives twice, once in the forward pass
// and once from the moment on when they are issued again, before its first backward command (recomputation.cpp). What
// travels to the host's memory (offload.h) lives twice, too: until it has left, and from the copy back on.
//
// A stage of a pipeline has several micro-batches in flight. What a forward command writes and a backward command reads
// then exists once per slot (ArenaPlan), the rest once; a segment is captured for each slot.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/program/offload.h"
#include "nn/arena.h"

namespace ringtrain::cuda {

using Storage = int;  // a buffer of the schedule; -1: none

struct Access {
  Storage storage;
  bool write = false;
};

struct Command {
  std::string name;          // "layer1.0.conv1 data gradient"
  std::vector<Access> uses;  // storages below 0 are left out
  // Gives the work to the stream. Looks addresses up with Schedule::at(). `accumulate`: a later micro-step.
  std::function<void(Device&, Stream, bool accumulate)> issue;
  std::vector<std::string> finishes = {};  // parameters whose gradients are then final
  double flops = 0, bytes = 0;             // for tables; bytes 0: plan() adds up the storages that it uses
  std::string operation = {};              // of cuDNN, with the number of its launches; empty: own kernels
  int block = -1;                          // Schedule::enter()
  bool replayed = true;                    // false: its arguments differ from pass to pass, so it is never captured
};

class Schedule {
 public:
  static constexpr std::int64_t alignment = 256;  // bytes; of cudaMalloc, and more than any kernel asks for

  explicit Schedule(int slots = 1) : slots_(slots) {}

  Storage buffer(std::string what, std::int64_t bytes);   // between its first and last use
  Storage lasting(std::string what, std::int64_t bytes);  // for the whole run: weights' copies, input, sums
  // The same, once for each slot: what commands of both passes read and none of them may make again.
  Storage per_slot(std::string what, std::int64_t bytes);
  void resize(Storage storage, std::int64_t bytes);       // until plan()
  std::int64_t bytes(Storage storage) const { return item(storage).bytes; }
  // One workspace for all commands: the largest that was asked for.
  void workspace(std::int64_t bytes);
  Storage workspace() const { return 0; }

  // Commands from here on belong to this block of the model, which is recomputed; -1: to none.
  void enter(int block) { block_ = block; }
  void add(Command command);
  void begin_backward();
  void begin_weights();  // commands that refresh the program's copies after an update; own segment

  // Early activations travel to the host's memory and back. Before plan().
  void offload(const OffloadRates& rates);

  // Lifetimes, arena, watermarks; segments end where a multiple of `segment_elements` of the flat vector becomes final.
  void plan(const ParameterTable& table, std::int64_t segment_elements);
  const ArenaPlan& arena() const { return arena_; }
  void bind(char* base);
  // at() and run() are of this slot from now on. Throws Error for one that there is not.
  void select(int slot);
  int slot() const { return slot_; }
  int slots() const { return slots_; }
  // Page-locked memory that the travelling activations need; after plan(). bind_host() is given it, where it is not 0.
  std::int64_t host_bytes() const;
  void bind_host(Device& device, std::byte* host);
  Stream offload_stream() const { return offload_stream_; }  // handle 0: none
  const OffloadTimes& offload_times() const { return offload_times_; }
  template <class T = void>
  T* at(Storage storage) const {
    return storage < 0 ? nullptr : reinterpret_cast<T*>(item(storage).base);
  }

  enum class Part { forward, backward, weights };
  // With graphs: the first run of a variant (accumulate or not) is a plain one, in which libraries load what they load
  // late; the second is captured and replayed, later ones are replayed.
  void run(Device& device, Part part, bool accumulate, bool graphs, const BackwardHooks* hooks);
  // What was captured no longer holds: an address that commands were given from outside has changed.
  void forget_captured(Part part);

  // Of a segment in one of its variants: a slot, accumulating or not.
  struct Replay {
    int runs = 0;
    CapturedGraph captured = {};
  };
  struct Segment {
    Part part;
    std::size_t begin, end;      // commands
    std::int64_t watermark = 0;  // gradients [0, watermark) are final behind it; backward only
    bool replayed = true;
    std::vector<Replay> replays;
  };
  // A storage that travels, and between which commands; they count as in the schedule without copies.
  struct Journey {
    Storage storage = -1;
    std::size_t written = 0;  // the last one that writes it in the forward pass
    std::size_t first_backward = 0;
    double seconds = 0;        // of a copy
    std::size_t out_done = 0;  // before this command the copy out is waited for
    std::size_t back = 0;      // before this command the copy back begins
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
    int again = -1;        // command at which the second life begins
    char* base = nullptr;  // of the life under way
  };
  // What waits in the host's memory. Events: its last write of the forward pass; the copy out is done; its memory in
  // the backward pass is free; the copy back is done.
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
  Command copy_out(std::size_t travel);
  Command copy_back(std::size_t travel);
  Command wait_for_copy(std::size_t travel, bool out);
  void find_lifetimes();
  void place();  // addresses are those of the slot
  void live_at(std::size_t command);  // addresses are those of this moment
  void count_bytes();
  std::vector<std::int64_t> watermarks(const ParameterTable& table) const;  // by command
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
  std::vector<bool> turns_;  // by command: a storage's second life begins there
  bool offloads_ = false;
  OffloadRates offload_rates_ = {};
  OffloadTimes offload_times_ = {};
  std::vector<Travel> travels_;
  Stream offload_stream_ = {};
  std::byte* host_ = nullptr;
};

}  // namespace ringtrain::cuda
