#include <algorithm>

#include "parallel/owned_sums.h"

namespace ringtrain {
namespace {

class ShardedSynchronizer final : public OwnedSums {
 public:
  using OwnedSums::OwnedSums;

 private:
  void start_sums(std::int64_t begin, std::int64_t end, PendingSums& pending) override {
    pending.push_back(communicator_.start_reduce_scatter(part(gradients_, begin, end), piece(begin, end)));
  }
  void start_sharing(std::span<float> weights, PendingSums& pending) override {
    for (std::int64_t begin = 0; begin < trained_; begin += bucket_elements_) {
      const std::int64_t end = std::min(begin + bucket_elements_, trained_);
      pending.push_back(communicator_.start_all_gather(part(weights, begin, end), piece(begin, end)));
    }
  }
  std::int64_t piece(std::int64_t begin, std::int64_t end) const {
    return shard_piece(end - begin, communicator_.size());
  }
};

}  // namespace

std::unique_ptr<Synchronizer> make_sharded_synchronizer(Communicator& communicator, std::span<float> gradients,
                                                        std::int64_t trained, std::int64_t bucket_elements,
                                                        const std::vector<OwnedRange>& owners, bool on_device) {
  return std::make_unique<ShardedSynchronizer>(communicator, gradients, trained, bucket_elements, owners, on_device);
}

}  // namespace ringtrain
