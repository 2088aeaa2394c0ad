// Communicators for vectors in device memory: with NCCL, and through host memory. Both give collectives on host memory
// to the host communicator of the ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"
#include "backend/norm_team.h"
#include "cluster/communicator.h"
#include "cluster/nccl_library.h"

namespace ringtrain {

struct NcclOptions {
  std::string algorithm = "auto";  // ring | tree | auto: NCCL's choice, or NCCL_ALGO if the user has set it
  // The type in which values travel. For 16 bits, each bucket is scaled (set_rounding()) and rounded into a second
  // buffer before the sum, and converted to fp32 after it. Elements that may not be rounded are summed in fp32.
  cuda::Type gradient_type = cuda::Type::fp32;
  // What record() returned at the run's first start. Its NCCL_ variables are set again, unless the user has set them to
  // other values.
  std::map<std::string, std::string> kept = {};
  // Above 0: all sums are added in a binary tree over the ranks (halving_sum()), by messages. A sum may have at most
  // this many elements. 0: NCCL's own sums.
  std::int64_t fixed_order_elements = 0;
  int max_ctas = 0;  // the most GPU blocks that NCCL may use, so that the others can compute; 0: NCCL's choice
  // The limit for the start of NCCL, and for a sum after this rank is ready. It is less than the watchdog's limit,
  // because the watchdog's message does not name the bucket.
  double timeout_seconds = 480;
};

// A communicator by NCCL. A sum runs in a stream of its own, while the backward pass is still computing. Events connect
// the two streams: e0 says that bucket 0 is final, f0 says that its sum has ended.
//
//   compute   ... bucket 0 final |e0  ... bucket 1 final |e1  ... end |wait f0 f1| update
//                                 \                       \            /
//   sums                           wait e0 | sum 0 | f0    wait e1 | sum 1 | f1
//
// The host never waits for a sum. While it waits for the device elsewhere, it calls poll(), which notices errors of
// NCCL and ranks that do not come.
//
// Collective. `host`, `device` and `api` must outlive the result. Throws Error, on every rank that notices it, if NCCL
// does not start in time or if the environments of the ranks would let them choose different algorithms.
std::unique_ptr<DeviceCommunicator> make_nccl_communicator(const NcclApi& api, cuda::Device& device, Communicator& host,
                                                           const NcclOptions& options);

// Returns the bytes of device memory for values that arrive from other ranks in a fixed order.
std::int64_t nccl_arrival_bytes(std::int64_t fixed_order_elements);

// A communicator through host memory, for programs without NCCL and for ranks that share a GPU. Each bucket is copied
// to page-locked memory, summed by an inner communicator (over MPI) and copied back. In the picture, e, h and f are
// events: the bucket is final, is in host memory, and is back on the device.
//
//   compute   ... bucket final |e                                   |wait f| update
//   down                        wait e | to host |h
//   host                                          ring
//   up                                                 to device |f
//
// `device` and `host` must outlive the communicator. Its sums make progress only inside done(), finish() and poll(),
// because the host takes part in them.
std::unique_ptr<DeviceCommunicator> make_staged_communicator(cuda::Device& device, Communicator& host);

// A team whose ranks exchange their numbers through host memory. In each exchange the host waits for the device, then
// the device for the host. The host calls `poll` while it waits. `device` must outlive the result.
std::unique_ptr<DeviceNormTeam> make_staged_norm_team(cuda::Device& device, std::unique_ptr<NormTeam> host,
                                                      std::function<void()> poll);

// The common part of the two communicators: `host` does what needs host memory only, and a table has the memory that
// they allocated. `Allocation` has `float* memory` and `std::int64_t count`.
template <class Allocation>
class HostedCommunicator : public DeviceCommunicator {
 public:
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  using DeviceCommunicator::start_sum;
  std::unique_ptr<Pending> start_sum(std::span<double> values) override { return host_.start_sum(values); }
  void broadcast(std::span<std::byte> bytes, int root) override { host_.broadcast(bytes, root); }
  void gather(std::span<const std::byte> mine, std::span<std::byte> all, int root) override {
    host_.gather(mine, all, root);
  }
  void scatter(std::span<const std::byte> all, std::span<std::byte> mine, int root) override {
    host_.scatter(all, mine, root);
  }
  void barrier() override { host_.barrier(); }
  // Ranks exchange a few numbers per channel, so these go through host memory.
  std::unique_ptr<NormTeam> make_norm_team(int span) override {
    return make_staged_norm_team(device_, host_.make_norm_team(span), [this] { poll(); });
  }

 protected:
  HostedCommunicator(cuda::Device& device, Communicator& host) : device_(device), host_(host) {}

  // Returns the memory that holds all of `values`, or null if allocate() did not give it.
  const Allocation* find(std::span<const float> values) const {
    for (const Allocation& a : allocations_)
      if (values.data() >= a.memory && values.data() + values.size() <= a.memory + a.count) return &a;
    return nullptr;
  }
  // Removes an entry from the table. Returns false if `memory` was not in it.
  bool take_out(const void* memory, Allocation& allocation) {
    const auto a = std::ranges::find_if(allocations_, [&](const Allocation& x) { return x.memory == memory; });
    if (a == allocations_.end()) return false;
    allocation = *a;
    allocations_.erase(a);
    return true;
  }

  cuda::Device& device_;
  Communicator& host_;
  std::vector<Allocation> allocations_;
};

}  // namespace ringtrain
