#include "parallel/stage_synchronizer.h"

#include <utility>

namespace ringtrain {
namespace {

class StageSynchronizer : public Synchronizer {
 public:
  StageSynchronizer(Communicator& all, StageRanks& stages, std::span<float> gradients, std::int64_t bucket_elements,
                    bool on_device)
      : all_(all),
        stages_(stages),
        reducer_(stages.over_replicas(), gradients, bucket_elements),
        elements_(std::ssize(gradients)),
        on_device_(on_device) {}

  void begin(BeforeBucket before) override { reducer_.begin(std::move(before)); }
  void ready(std::int64_t watermark) override { reducer_.ready(watermark); }
  void poll() override { reducer_.poll(); }
  // On a device, the sums are queued before all later work. In host memory they continue until agree().
  void finish() override {
    reducer_.ready(elements_);
    if (on_device_)
      reducer_.finish({});
    else
      is_summing_ = true;
  }
  void agree(std::span<double> counters) override {
    if (std::exchange(is_summing_, false)) reducer_.finish({});
    all_.sum(counters);
  }
  UpdateShare update_share() override { return stages_.share(); }

 private:
  Communicator& all_;
  StageRanks& stages_;
  GradientReducer reducer_;
  std::int64_t elements_;
  bool on_device_;
  bool is_summing_ = false;  // true in host memory between finish() and agree()
};

}  // namespace

std::unique_ptr<Synchronizer> make_stage_synchronizer(Communicator& all, StageRanks& stages, std::span<float> gradients,
                                                      std::int64_t bucket_elements, bool on_device) {
  return std::make_unique<StageSynchronizer>(all, stages, gradients, bucket_elements, on_device);
}

}  // namespace ringtrain
