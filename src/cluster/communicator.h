// This folder connects the ranks of a job. A Session (session.h) starts and ends MPI. A RankGroup (rank_group.h) is a
// set of ranks that train together, and a Communicator (this file) gives the collectives of the training step: sums,
// broadcasts and gathers. The trainer and GradientReducer use this interface only. Its implementations are
// mpi_communicator.cpp (host memory), and nccl_communicator.cpp and staged_communicator.cpp (GPUs;
// device_communicator.h). Links and mailboxes carry single messages between ranks. The watchdog (watchdog.h) ends a job
// that hangs. Begin with this file, then read sum_algorithms.h, which describes the steps of a sum. MpiLanes
// (mpi_sums.h) carries them out, by messages or, within a node, through node_memory.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "cluster/sum_algorithms.h"

namespace ringtrain {

class NormTeam;
class RankGroup;

// The bytes that this rank gives to other ranks while it trains.
struct SentBytes {
  std::int64_t by_message = 0;      // by MPI or NCCL, within a node and between nodes
  std::int64_t through_memory = 0;  // ranks of the same node read them in this rank's memory (node_memory.h)

  SentBytes& operator+=(const SentBytes& other) {
    by_message += other.by_message;
    through_memory += other.through_memory;
    return *this;
  }
  SentBytes operator-(const SentBytes& other) const {
    return {by_message - other.by_message, through_memory - other.through_memory};
  }
};

// Returns the bytes since the start of the process. The code that sends adds its bytes here. Only the main thread
// sends. A library does not say what its collectives send. Sums and gathered pieces then count as those of a ring. A
// broadcast counts its data once for each receiver. In a sum on one rank, every other rank counts its data once.
inline SentBytes& sent_bytes() {
  static SentBytes bytes;
  return bytes;
}

// Returns the bytes that a rank sends in one half of a ring's sum, the reduce-scatter or the all-gather. It sends all
// of the `ranks` pieces but one.
inline std::int64_t ring_half_bytes(std::int64_t bytes, int ranks) {
  return bytes * (ranks - 1) / ranks;
}

// A collective or a message under way. Its buffers stay alive and untouched until done() has returned true or finish()
// has returned.
class Pending {
 public:
  virtual ~Pending() = default;
  // Makes progress and never blocks. With NCCL it throws what Communicator::poll() throws.
  virtual bool done() = 0;
  // Returns when the result may be used. A result in host memory is complete then. A sum on a device may still run: the
  // host does not wait for it, but work that is given to the device's compute stream after this call does. Other
  // threads run after a few tries, so that a waiting rank does not starve the other ranks of an oversubscribed node.
  virtual void finish();
};

// How gradients are rounded when they travel in 16 bits. Gradients are already divided by the number of targets in the
// global batch. They may therefore be too small for fp16, whose smallest positive number is 6e-8.
struct GradientRounding {
  std::int64_t elements = INT64_MAX;  // [0, elements) are rounded; batch norm's statistics after them stay fp32
  float scale = 1;  // a power of two: multiplies the values before the sum, and divides the sums in fp32
};
// The scale times the loss scale is about the largest power of two up to `targets`, but at most 2^12, so that large
// gradients stay below fp16's largest number 65504. The scale is at least 1.
GradientRounding gradient_rounding(std::int64_t trained_elements, std::int64_t targets, float loss_scale);

// A function that reads or changes the values of a sum before they are summed. start_sum(), start_reduce_scatter() and
// start_root_sum() call it once. `stream` is the handle of the device stream that runs the sum; work that the function
// gives to this stream runs before the sum. 0: there is no such stream, or the work goes to the compute stream.
using BeforeSum = std::function<void(std::uintptr_t stream)>;

// Collectives over the ranks of a group. Only the main thread may call them (MPI_THREAD_FUNNELED). Sums make progress
// inside done(), finish() and the blocking calls. All Pending objects must be destroyed before their communicator.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string describe() const = 0;  // such as "MPI, ring, chunks of 256 KiB"

  // Returns zeroed memory for a vector whose parts start_sum() will sum. It begins at a cache line. Collective: all
  // ranks make the same calls. The caller releases it before the communicator is destroyed. Host memory of other origin
  // can be summed too, but more slowly: ranks of a node read each other's vectors in place only in this memory. A sum
  // uses this memory on all ranks or on none. Throws Error or std::bad_alloc if there is too little memory.
  virtual void* allocate(std::int64_t bytes) = 0;
  virtual void release(void* memory) = 0;

  // Starts an in-place sum of fp32 values over the ranks. Every rank gets the same bits. All ranks start the same
  // collectives in the same order. Several collectives may be under way at once. For a DeviceCommunicator, the fp32
  // values here, in start_reduce_scatter() to start_broadcast() below, and in broadcast_vector() are in its device's
  // memory. All other arguments are in host memory, also the values of gather() and scatter().
  virtual std::unique_ptr<Pending> start_sum(std::span<float> values, const BeforeSum& before = {}) = 0;
  virtual std::unique_ptr<Pending> start_sum(std::span<double> values) = 0;  // a few counters; same bits everywhere
  void sum(std::span<float> values);                                         // start and wait
  void sum(std::span<double> values);

  // The two halves of a sum. `values` are cut into pieces of `piece` elements; the last pieces may be shorter or empty.
  // After the reduce-scatter, rank r has the sums of piece r; its other pieces are undefined. The all-gather copies
  // piece r of rank r to all ranks.
  virtual std::unique_ptr<Pending> start_reduce_scatter(std::span<float> values, std::int64_t piece,
                                                        const BeforeSum& before = {}) = 0;
  virtual std::unique_ptr<Pending> start_all_gather(std::span<float> values, std::int64_t piece) = 0;
  // Gives the sums to rank `root` only. MPI adds in the order of the ranks.
  virtual std::unique_ptr<Pending> start_root_sum(std::span<float> values, int root, const BeforeSum& before = {}) = 0;
  virtual std::unique_ptr<Pending> start_broadcast(std::span<float> values, int root) = 0;  // from `root` to each rank

  // Sets the rounding for sums of fp32 values that travel in 16 bits. All ranks call it with the same values, before
  // the first sum.
  virtual void set_rounding(const GradientRounding& rounding) { static_cast<void>(rounding); }

  // Sends bytes from rank `root` to all ranks. Any size is allowed; more than INT_MAX bytes go in chunks.
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  // Does the same for a vector in the memory on which start_sum() works.
  virtual void broadcast_vector(std::span<float> values, int root);
  // Copies `mine` of rank r (same length everywhere) to all[r * mine.size()] on `root`. `all` is empty on other ranks.
  // Any size is allowed.
  virtual void gather(std::span<const std::byte> mine, std::span<std::byte> all, int root) = 0;
  // The reverse of gather(): `all` on `root` is cut into equal pieces, and rank r gets piece r.
  virtual void scatter(std::span<const std::byte> all, std::span<std::byte> mine, int root) = 0;
  virtual void barrier() = 0;

  // Returns this rank's team, `span` neighbouring ranks that share batch norm's groups. Collective. Throws Error if
  // ranks cannot share groups.
  virtual std::unique_ptr<NormTeam> make_norm_team(int span) = 0;

  // Throws an error that has occurred outside the calls above. The host calls it while it waits for a device or a disk.
  virtual void poll() {}
  // Ends all collectives under way on a device after an error, so that memory can be freed before the caller ends the
  // job. No collective may be started afterwards. With MPI it does nothing. It throws nothing. If it would hang, it
  // prints `why` and ends the job.
  virtual void abort(const std::string& why) { static_cast<void>(why); }
  // Returns the settings on which the bits of a sum depend, apart from ranks, devices and topology. They are stored
  // with a run. A resumed run whose settings differ continues with other rounding errors.
  virtual std::map<std::string, std::string> record() const { return {}; }

 protected:
  // Throws Error if the values do not fit into size() pieces of `piece` elements.
  void check_pieces(std::span<const float> values, std::int64_t piece) const;
};

// Sums vectors in the memory of a device, which allocate() gives.
class DeviceCommunicator : public Communicator {};

// Returns the bytes of a value, as which it travels.
template <class Value>
auto value_bytes(Value& value) {
  static_assert(std::is_trivially_copyable_v<Value>);
  if constexpr (std::is_const_v<Value>)
    return std::as_bytes(std::span(&value, 1));
  else
    return std::as_writable_bytes(std::span(&value, 1));
}

// Returns rank 0's value on all ranks. Collective.
template <class Value>
Value of_rank_0(Communicator& communicator, Value value) {
  communicator.broadcast(value_bytes(value), 0);
  return value;
}

// Returns the value of every rank, in their order, on rank 0, and nothing on other ranks. Collective.
template <class Value>
std::vector<Value> gather_to_0(Communicator& communicator, const Value& mine) {
  std::vector<Value> all(communicator.rank() == 0 ? static_cast<std::size_t>(communicator.size()) : 0);
  communicator.gather(value_bytes(mine), std::as_writable_bytes(std::span(all)), 0);
  return all;
}

// Broadcasts a string of any length.
std::string broadcast_string(Communicator& communicator, std::string text, int root);

// Makes a communicator on host memory. Values travel between two ranks in MPI messages. Ranks of a node read values in
// memory of allocate() in place. `choice` selects one of the sum algorithms that sum_algorithms.h describes, or the MPI
// library's own all-reduce. A reduce-scatter or all-gather alone always uses the ring. `chunk_bytes` is the size of the
// messages of a pipelined transfer. A message has at most `max_count` elements (INT_MAX; tests use smaller values).
// Collective over the group. Throws Error for an invalid choice (check_sum_choice).
std::unique_ptr<Communicator> make_mpi_communicator(const RankGroup& group, std::size_t chunk_bytes,
                                                    std::size_t max_count = 0x7fffffff, const SumChoice& choice = {});

// Returns this rank's team of neighbouring ranks that share the virtual workers of batch norm: the `span` ranks [span
// t, span (t + 1)) for t = rank / span, rounded down. `span` is a power of two that divides the group's size.
// Collective over the group. Throws Error for another span, and the errors of check_norm_teams().
std::unique_ptr<NormTeam> make_mpi_norm_team(const RankGroup& group, int span);

// Throws Error if ranks of a team are on different nodes. Such ranks exchange numbers twice in every batch norm of
// every pass, and the other ranks wait meanwhile. `hosts` has the host of every rank, in rank order.
void check_norm_teams(const std::vector<std::string>& hosts, int span);

}  // namespace ringtrain
