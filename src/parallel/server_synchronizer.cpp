#include <algorithm>

#include "parallel/owned_sums.h"

namespace ringtrain {
namespace {

class ServerSynchronizer final : public OwnedSums {
 public:
  using OwnedSums::OwnedSums;
  double server_seconds() const override { return waited_seconds(); }

 private:
  void start_sums(std::int64_t begin, std::int64_t end, PendingSums& pending) override {
    for (const auto& [elements, rank] : owners_) {
      const std::int64_t from = std::max(begin, elements.begin), to = std::min(end, elements.end);
      if (from < to) pending.push_back(communicator_.start_root_sum(part(gradients_, from, to), rank));
    }
  }
  void start_sharing(std::span<float> weights, PendingSums& pending) override {
    for (const auto& [elements, rank] : owners_)
      pending.push_back(communicator_.start_broadcast(part(weights, elements.begin, elements.end), rank));
  }
};

}  // namespace

std::unique_ptr<Synchronizer> make_server_synchronizer(Communicator& communicator, std::span<float> gradients,
                                                       std::int64_t trained, std::int64_t bucket_elements,
                                                       const std::vector<OwnedRange>& owners, bool on_device) {
  return std::make_unique<ServerSynchronizer>(communicator, gradients, trained, bucket_elements, owners, on_device);
}

}  // namespace ringtrain
