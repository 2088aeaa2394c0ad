// Sums gradients over ranks while the backward pass still runs. A bucket is a range of the flat gradient vector. All
// gradients before the watermark are final. When the watermark passes the end of a bucket, the reducer starts the
// bucket's sum. The vector may be on a device, because the reducer itself does not read it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cluster/communicator.h"

namespace ringtrain {

// Called with the first element of a bucket and the stream of its sum, as BeforeSum is.
using BeforeBucket = std::function<void(std::int64_t begin, std::uintptr_t stream)>;

using PendingSums = std::deque<std::unique_ptr<Pending>>;

// Starts the sums of the bucket [begin, end), which are the same on all ranks, and appends them to `pending`. It calls
// `before` once.
using StartBucket =
    std::function<void(std::int64_t begin, std::int64_t end, const BeforeSum& before, PendingSums& pending)>;

class GradientReducer {
 public:
  // `gradients` is the whole flat vector. `bucket_elements` is the size of a bucket; the last bucket takes the rest.
  // `start` starts the sum of a bucket. If `start` is null, all ranks get the sum. Throws Error if `bucket_elements` is
  // less than 1.
  GradientReducer(Communicator& communicator, std::span<float> gradients, std::int64_t bucket_elements,
                  StartBucket start = {});

  // All ranks make the same calls in a step: begin(), ready() and poll() in the backward pass, then finish().
  // begin() starts a new step, in which no gradient is ready yet. `before` is called for every bucket before its sum.
  void begin(BeforeBucket before = {});
  void ready(std::int64_t watermark);  // elements [0, watermark) are final on this rank; starts full buckets
  void poll();                         // advances the sums; cheap, called between kernels
  // Called when all gradients are ready. Starts the remaining sums and the sum of `counters`, if there are any. Returns
  // when the sums of the counters are complete and the gradients may be used (Pending::finish()).
  void finish(std::span<double> counters);

  double exposed_seconds() const { return exposed_seconds_; }  // time inside finish() in the last step

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
