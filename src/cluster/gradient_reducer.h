// Averages gradients while the backward pass still runs: as the watermark rises, whole buckets (plain ranges of the
// flat gradient vector) are handed to the communicator. The vector may be on a device: nothing here reads it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cluster/communicator.h"

namespace ringtrain {

// Called with a bucket's first element and the stream of its sum, as BeforeSum.
using BeforeBucket = std::function<void(std::int64_t begin, std::uintptr_t stream)>;

using PendingSums = std::deque<std::unique_ptr<Pending>>;

// Begins the sums of the bucket [begin, end), the same on all ranks, and appends them. `before`: called once.
using StartBucket =
    std::function<void(std::int64_t begin, std::int64_t end, const BeforeSum& before, PendingSums& pending)>;

class GradientReducer {
 public:
  // `gradients`: the whole flat vector. `bucket_elements`: length of a bucket; the last one takes the rest. `start`: what
  // is done with a bucket; null: all ranks get its sum.
  GradientReducer(Communicator& communicator, std::span<float> gradients, std::int64_t bucket_elements,
                  StartBucket start = {});

  // Step protocol, the same calls with the same watermarks on all ranks (watermarks may be seen at different times):
  // A new step: nothing is ready. `before`: is shown every bucket of this step before its sum.
  void begin(BeforeBucket before = {});
  void ready(std::int64_t watermark);  // elements [0, watermark) hold their final local values: launch what is whole
  void poll();                         // advance what is under way; cheap, called between kernels
  // Everything is ready. Launches the rest and, with the last bucket, the sum of `counters` (if there are any); returns
  // when the counters are there and the gradients may be used (Pending::finish()).
  void finish(std::span<double> counters);

  double exposed_seconds() const { return exposed_seconds_; }  // of the last step: time inside finish()
  std::int64_t buckets() const;

 private:
  Communicator& communicator_;
  std::span<float> gradients_;
  std::int64_t bucket_elements_;
  std::int64_t launched_ = 0;
  BeforeBucket before_;
  StartBucket start_;
  PendingSums pending_;
  double exposed_seconds_ = 0;
};

}  // namespace ringtrain
