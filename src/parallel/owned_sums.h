// The base class of synchronizers whose ranks own parts of the weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/synchronizer.h"

namespace ringtrain {

class OwnedSums : public Synchronizer {
 public:
  OwnedSums(Communicator& communicator, std::span<float> gradients, std::int64_t trained, std::int64_t bucket_elements,
            std::vector<OwnedRange> owners, bool on_device);
  void begin(BeforeBucket before) override;
  void ready(std::int64_t watermark) override { reducer_.ready(watermark); }
  void poll() override { reducer_.poll(); }
  void finish() override;
  void agree(std::span<double> counters) override;
  UpdateShare update_share() override;
  void share(Vector& weights) override;

 protected:
  // Begins the sums of [begin, end), which is a part of the trained elements.
  virtual void start_sums(std::int64_t begin, std::int64_t end, PendingSums& pending) = 0;
  // Begins to send the elements of every owner to all ranks.
  virtual void start_sharing(std::span<float> weights, PendingSums& pending) = 0;

  static std::span<float> part(std::span<float> values, std::int64_t begin, std::int64_t end) {
    return values.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  }
  // Returns the seconds that the host waited for sums and weights in this step. On a device the result is 0, because
  // the host only queues these waits.
  double waited_seconds() const { return on_device_ ? 0 : waited_seconds_; }

  Communicator& communicator_;
  std::span<float> gradients_;
  std::int64_t trained_, bucket_elements_;
  std::vector<OwnedRange> owners_;

 private:
  void start_bucket(std::int64_t begin, std::int64_t end, const BeforeSum& before, PendingSums& pending);
  void gather(std::span<float> values, std::int64_t begin);

  GradientReducer reducer_;
  bool on_device_;
  bool is_summing_ = false;  // true in host memory between finish() and agree()
  double waited_seconds_ = 0;
};

}  // namespace ringtrain
