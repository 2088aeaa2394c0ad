// Collectives of the training step. The trainer and the reducer see this interface only; MPI and NCCL are behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cluster/sum_choice.h"

namespace ringtrain {

class GroupRanks;
class RankGroup;

// A collective under way. Buffers stay alive and untouched until done() has returned true or finish() has returned.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual bool done() = 0;  // makes progress, never blocks, and does not see that another rank has failed
  // Returns when the result may be used. Values in host memory are there then; a sum on a device need not have ended:
  // what is given to the device's compute stream from now on waits for it, the host does not. Throws GroupFailed
  // (rank_group.h) when a rank cannot take part any more; abort() of the communicator comes next.
  virtual void finish();
};

// How gradients are rounded when they travel in 16 bits. They are already divided by the targets of the global batch,
// so they may be too small for fp16, whose smallest number is 6e-8.
struct GradientRounding {
  std::int64_t elements = INT64_MAX;  // elements [0, this) are rounded; batch norm's statistics after them stay fp32
  float scale = 1;                    // a power of two; values are multiplied before, and divided in fp32 after the sum
};
// The scale is the largest power of two up to `targets`, at most 2^12, so that large gradients stay below fp16's 65504.
// What the loss scale already multiplies is left out; the scale is at least 1.
GradientRounding gradient_rounding(std::int64_t trained_elements, std::int64_t targets, float loss_scale);

// Looks at the values of a sum while they are still this rank's own; called once, inside start_sum(). `stream`: handle
// of the device's stream that is about to take them: work that is given to it now comes before the sum. 0: none of its
// own.
using BeforeSum = std::function<void(std::uintptr_t stream)>;

// For the main thread only (MPI_THREAD_FUNNELED). Sums make progress inside done(), wait() and the blocking calls; all
// Pending objects end before their communicator.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string describe() const = 0;  // "MPI, ring, chunks of 256 KiB"

  // In-place sum over ranks of fp32 values; every rank ends with the same bits. All ranks start the same collectives
  // in the same order; several may be under way. A DeviceCommunicator takes addresses of its device, here and in
  // broadcast_vector(); everything else is in host memory with all of them.
  virtual std::unique_ptr<Pending> start_sum(std::span<float> values, const BeforeSum& before = {}) = 0;
  virtual std::unique_ptr<Pending> start_sum(std::span<double> values) = 0;  // a few counters; same bits everywhere
  void sum(std::span<float> values);                                         // start and wait
  void sum(std::span<double> values);

  // The two halves of a sum: `values` are cut into pieces of `piece` elements, of which the last ones may be shorter or
  // empty. The first leaves rank r with the sums of piece r, and nothing of use in the other pieces; the second brings
  // rank r's piece r to all. Throws Error where the communicator cannot do it.
  virtual std::unique_ptr<Pending> start_reduce_scatter(std::span<float> values, std::int64_t piece,
                                                        const BeforeSum& before = {});
  virtual std::unique_ptr<Pending> start_all_gather(std::span<float> values, std::int64_t piece);
  // Leaves rank `root` with the sums, added in the order of the ranks; the others' values stay as they are.
  virtual std::unique_ptr<Pending> start_root_sum(std::span<float> values, int root, const BeforeSum& before = {});
  virtual std::unique_ptr<Pending> start_broadcast(std::span<float> values, int root);  // from `root` to each rank

  // For sums of fp32 values that travel in 16 bits. The same on all ranks, before the first sum.
  virtual void set_rounding(const GradientRounding& rounding) { static_cast<void>(rounding); }

  // From rank `root` to all; any size (chunked above INT_MAX bytes).
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  // The same for a vector of the backend, where start_sum() would find it.
  virtual void broadcast_vector(std::span<float> values, int root);
  // Rank r's `mine` (same length everywhere) lands at all[r * mine.size()] on `root`; `all` is empty elsewhere.
  virtual void gather(std::span<const float> mine, std::span<float> all, int root) = 0;
  // The reverse: `all` on root is cut into equal pieces.
  virtual void scatter(std::span<const float> all, std::span<float> mine, int root) = 0;
  virtual void barrier() = 0;

  // The `span` neighbouring ranks that share batch norm's groups with this one (span_ranks.h). Collective. Throws Error
  // where they cannot.
  virtual std::unique_ptr<GroupRanks> share_groups(int span);

  // Throws what has gone wrong meanwhile outside the calls above, on this rank or on another one of the group; to be
  // called while the host waits for a device or a disk.
  virtual void poll() {}
  // After an error: ends what is under way, so that memory can be given back. Nothing may be started afterwards. Where
  // the group fails alone (RankGroup::ends_job() is false), it tells the other ranks `why` and returns when none uses
  // this rank's memory any more. Throws nothing and cannot hang: where it would, it prints `why` and ends the job.
  virtual void abort(const std::string& why) { static_cast<void>(why); }
  // What the bits of a sum depend on besides ranks, devices and topology: stored with a run; where a resumed run has
  // other values it continues within rounding.
  virtual std::map<std::string, std::string> record() const { return {}; }

 protected:
  // Throws Error where size() pieces of so many elements do not hold the values.
  void check_pieces(std::span<const float> values, std::int64_t piece) const;
};

// Sums vectors in the memory of a device.
class DeviceCommunicator : public Communicator {
 public:
  // Memory for a vector that start_sum() will be given pieces of; zeros. Collective: the same calls on all ranks. It is
  // released before the communicator ends.
  virtual void* allocate(std::int64_t bytes) = 0;
  virtual void release(void* memory) = 0;
};

// Lets other threads run after a few tries: a waiting rank must not starve the others of an oversubscribed node.
void wait(Pending& pending);

// Broadcasts a string of any length.
std::string broadcast_string(Communicator& communicator, std::string text, int root);

// A group's ranks over MPI point-to-point messages on host memory (sum_schedule.h says how sums are made; `choice`,
// which way). Reduce-scatter and all-gather alone go around the ring. `chunk_bytes`: size of a message, in chunks that
// travel as a pipeline. Messages' element counts stay below `max_count` (INT_MAX; smaller in tests). Collective over
// the group. Throws Error for a choice that is none (check_sum_choice).
std::unique_ptr<Communicator> make_mpi_communicator(const RankGroup& group, std::size_t chunk_bytes,
                                                    std::size_t max_count = 0x7fffffff, const SumChoice& choice = {});

}  // namespace ringtrain
