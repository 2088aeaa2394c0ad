// The common part of the two communicators for vectors in device memory: the one with NCCL and the one through host
// memory. It has the table of the memory that they allocated, events for reuse, and the unfinished sums in the order of
// their start. Collectives on host memory go to the host communicator of the ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/device/device.h"
#include "backend/cuda/device/event_pool.h"
#include "cluster/communicator.h"

namespace ringtrain {

// `Allocation` has `float* memory` and `std::int64_t count`. `Running` is one sum between its start and its end.
template <class Allocation, class Running>
class QueuedCommunicator : public DeviceCommunicator {
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

 protected:
  QueuedCommunicator(cuda::Device& device, Communicator& host) : device_(device), host_(host) {}

  // ---- Memory

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

  // ---- Sums under way

  // Returns the number of the next sum. Its Pending finds it by this number.
  std::int64_t next_number() const { return ended_ + std::ssize(running_); }
  bool ended(std::int64_t number) const { return number < ended_; }
  // Returns a sum that has not ended.
  Running& running(std::int64_t number) { return running_[static_cast<std::size_t>(number - ended_)]; }
  void end_first() {
    running_.pop_front();
    ++ended_;
  }
  virtual bool done(std::int64_t number) = 0;
  virtual void finish(std::int64_t number) = 0;

  class PendingSum final : public Pending {
   public:
    PendingSum(QueuedCommunicator& communicator, std::int64_t number) : communicator_(communicator), number_(number) {}
    bool done() override { return communicator_.done(number_); }
    void finish() override { communicator_.finish(number_); }

   private:
    QueuedCommunicator& communicator_;
    std::int64_t number_;
  };
  std::unique_ptr<Pending> pending(std::int64_t number) { return std::make_unique<PendingSum>(*this, number); }

  cuda::Device& device_;
  Communicator& host_;
  std::vector<Allocation> allocations_;
  std::deque<Running> running_;
  cuda::EventPool events_{device_};

 private:
  std::int64_t ended_ = 0;  // running_[i] has the number ended_ + i
};

}  // namespace ringtrain
