// What makes one step of all ranks' passes: the gradients are summed and the ranks agree on the step's counters.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "cluster/gradient_reducer.h"

namespace ringtrain {

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
};

// Every rank keeps all weights, and a ring sums the gradients bucket by bucket while the backward pass still runs
// (cluster/gradient_reducer.h). `gradients`: the flat vector, where start_sum() of the communicator finds it.
std::unique_ptr<Synchronizer> make_ring_synchronizer(Communicator& communicator, std::span<float> gradients,
                                                     std::int64_t bucket_elements, bool on_device);

class StageRanks;

// `stages` null: the ring over all ranks of `communicator`. Of a pipeline: the ring of a stage's gradients over the
// replicas; counters are summed over all ranks.
std::unique_ptr<Synchronizer> make_synchronizer(Communicator& communicator, StageRanks* stages,
                                                std::span<float> gradients, std::int64_t bucket_elements,
                                                bool on_device);

}  // namespace ringtrain
