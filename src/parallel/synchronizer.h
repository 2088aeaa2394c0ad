// The interface that combines the passes of all ranks into one step: a Synchronizer sums the gradients and the step's
// counters over the ranks. Begin reading here. This folder (src/parallel) holds the kinds of parallel training. One
// Synchronizer serves a ring, sharded optimizer state, synchronous servers and pipelines (make_synchronizer()).
// owners() says which rank updates which elements. pipeline.h describes the ranks of a pipeline and orders the passes
// of a step. Asynchronous servers and servers with backup workers have their own loop: parameter_server.h moves weights
// and gradients, and update_order.h decides which gradient is applied next.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "cluster/gradient_reducer.h"
#include "config/experiment.h"
#include "optim/optimizer.h"

namespace ringtrain {

class StageRanks;

// All ranks make the same calls in the same order. On a CPU, the sums are in host memory and the update waits for them.
// On a device, the sums and the update are queued at once, and the host waits for the counters only. The sums may still
// run on the device after agree(), but later work in the compute stream waits for them.
class Synchronizer {
 public:
  virtual ~Synchronizer() = default;
  // Begins a step, in which no gradient is ready yet. `before` is called with every bucket while the bucket still holds
  // this rank's own values.
  virtual void begin(BeforeBucket before = {}) = 0;
  virtual void ready(std::int64_t watermark) = 0;  // elements [0, watermark) hold this rank's final values
  virtual void poll() = 0;                         // lets the sums advance; cheap, called between kernels
  // Says that every gradient is ready, so that the last bucket goes out. Backend::queue_update() may then be called.
  virtual void all_ready() = 0;
  // Sums `counters` over the ranks. All ranks get the same bits. On a CPU, agree() also waits for the sums of the
  // gradients. Backend::finish_update() may then be called.
  virtual void agree(std::span<double> counters) = 0;

  // Returns the elements that this rank updates. A rank that updates a part gets the summed gradients of that part
  // only. The statistics after the trained elements are summed on all ranks. share() must follow each update.
  virtual UpdateShare update_share() { return {}; }
  // Collective. Gathers `weights`, of which each rank has updated its own elements, on all ranks. In host
  // memory, `weights` are complete when the call returns. On a device, they are complete for all work that is given to
  // the compute stream after the call.
  virtual void share(Vector& weights) { static_cast<void>(weights); }
  // Returns the seconds of the last step in which this rank waited for servers to get gradients or to send weights.
  // Returns 0 on a device, where the host only queues these waits and nobody measures them.
  virtual double server_seconds() const { return 0; }
};

// Makes the synchronizer that the experiment asks for. `gradients` is the flat vector, in memory that
// Communicator::start_sum() can sum. Its first `trained` elements are updated. `stages` is not null in a pipeline. The
// gradients of a stage are then summed over its replicas by a ring, and counters are summed over all ranks.
std::unique_ptr<Synchronizer> make_synchronizer(const ParallelConfig& parallel, Communicator& communicator,
                                                StageRanks* stages, std::span<float> gradients, std::int64_t trained,
                                                std::int64_t bucket_elements, bool on_device);

// Which rank updates which elements of the flat vector if the ranks share the optimizer's work.

struct OwnedRange {
  ElementRange elements;
  int rank = 0;
};

// Returns the length of the pieces into which ranks divide a bucket (parallel.shard_state), a multiple of 64 elements.
// Rank r has the r-th piece. The last pieces may be shorter or empty.
std::int64_t shard_piece(std::int64_t bucket_elements, int ranks);

// Returns ranges that cover [0, trained) in ascending order. Empty if every rank updates everything. `bucket_elements`
// is the bucket size of the communication.
std::vector<OwnedRange> owners(const ParallelConfig& parallel, std::int64_t trained, std::int64_t bucket_elements,
                               int ranks);

// Returns the elements of range number `range`, if [0, trained) is divided into `ranges` ranges of equal size. This is
// for servers that have their own ranks.
ElementRange served_range(std::int64_t trained, int range, int ranges);

// Throws Error if there are more parameter servers than trained weights, or more servers that are workers too
// (servers_work()) than ranks.
void check_servers(const ParallelConfig& parallel, int ranks, std::int64_t trained);

// Returns the ranges of one rank, or nothing if every rank updates everything.
std::optional<std::vector<ElementRange>> owned_by(int rank, const std::vector<OwnedRange>& owners);

}  // namespace ringtrain
