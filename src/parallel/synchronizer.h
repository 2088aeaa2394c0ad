// What makes one step of all ranks' passes: the gradients are summed and the ranks agree on the step's counters.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "backend/backend.h"
#include "cluster/gradient_reducer.h"
#include "config/experiment.h"
#include "optim/update_share.h"
#include "parallel/owners.h"

namespace ringtrain {

class StageRanks;

// All ranks make the same calls in the same order. A CPU sums in host memory, and the update waits for the sums; a
// device is given the sums and the update at once, and the host waits for its counters only. agree() is where both have
// come to.
class Synchronizer {
 public:
  virtual ~Synchronizer() = default;
  // A step begins: no gradient is ready. `before`: is shown every bucket while it holds this rank's own values.
  virtual void begin(BeforeBucket before = {}) = 0;
  virtual void ready(std::int64_t watermark) = 0;  // elements [0, watermark) hold this rank's final values
  virtual void poll() = 0;                         // lets the sums advance; cheap, called between kernels
  // Every gradient is ready. Backend::start_update() may be called with the gradients from here on.
  virtual void finish() = 0;
  // Sums `counters` over the ranks; the same bits on all of them. After finish() it returns when the gradients' sums
  // are there too, and Backend::finish_update() may be called.
  virtual void agree(std::span<double> counters) = 0;

  // What of the update is this rank's. Where it has a part, its gradients are summed for that part only (statistics
  // behind the trained elements on all ranks), and share() follows each update.
  virtual UpdateShare update_share() { return {}; }
  // Collective: `weights`, of which each rank has its own elements, become whole on all. Returns when they are.
  virtual void share(Vector& weights) { static_cast<void>(weights); }
  // Seconds of the last step in which this rank waited for gradients to reach servers, or for weights from them.
  virtual double server_seconds() const { return 0; }
};

// Every rank keeps all weights, and a ring sums the gradients bucket by bucket while the backward pass still runs
// (cluster/gradient_reducer.h). `gradients`: the flat vector, where start_sum() of the communicator finds it.
std::unique_ptr<Synchronizer> make_ring_synchronizer(Communicator& communicator, std::span<float> gradients,
                                                     std::int64_t bucket_elements, bool on_device);

// The same with the optimizer's state in parts (parallel.shard_state; ZeRO stage 1, Rajbhandari et al. 2020): each
// bucket's sums are left on the ranks that own its pieces, and after the update the pieces are gathered. `trained`:
// elements that are updated; what lies behind them is summed on all ranks.
std::unique_ptr<Synchronizer> make_sharded_synchronizer(Communicator& communicator, std::span<float> gradients,
                                                        std::int64_t trained, std::int64_t bucket_elements,
                                                        const std::vector<OwnedRange>& owners, bool on_device);

// Synchronous parameter servers, which are the ranks that own something; all ranks are workers, too. Buckets are pushed
// as they fill, and added on their owners (Communicator::start_root_sum()); after the update the owners send the weights to
// all.
std::unique_ptr<Synchronizer> make_server_synchronizer(Communicator& communicator, std::span<float> gradients,
                                                       std::int64_t trained, std::int64_t bucket_elements,
                                                       const std::vector<OwnedRange>& owners, bool on_device);

// The one that the experiment asks for. `stages` not null: of a pipeline; the ring of a stage's gradients over the
// replicas, and counters are summed over all ranks.
std::unique_ptr<Synchronizer> make_synchronizer(const ParallelConfig& parallel, Communicator& communicator,
                                                StageRanks* stages, std::span<float> gradients, std::int64_t trained,
                                                std::int64_t bucket_elements, bool on_device);

}  // namespace ringtrain
