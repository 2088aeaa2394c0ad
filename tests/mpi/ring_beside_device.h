// A communicator for the host of a device that computes while the host waits, as a GPU does.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "backend/norm_team.h"
#include "cluster/communicator.h"
#include "cluster/mpi_calls.h"
#include "tests/emulation/host_device.h"

namespace ringtrain {

// A ring whose device works while the host waits for a sum of counters. Another rank may need this rank's part of a sum
// on devices before that rank comes to its counters.
class RingBesideDevice final : public Communicator {
 public:
  RingBesideDevice(Communicator& ring, cuda::HostDevice& device) : ring_(ring), device_(device) {}
  int rank() const override { return ring_.rank(); }
  int size() const override { return ring_.size(); }
  std::string describe() const override { return ring_.describe(); }
  std::unique_ptr<Pending> start_sum(std::span<float> values, const BeforeSum& before) override {
    return ring_.start_sum(values, before);
  }
  std::unique_ptr<Pending> start_sum(std::span<double> values) override {
    return std::make_unique<Waiting>(ring_.start_sum(values), device_);
  }
  void* allocate(std::int64_t bytes) override { return ring_.allocate(bytes); }
  void release(void* memory) override { ring_.release(memory); }
  std::unique_ptr<Pending> start_reduce_scatter(std::span<float> values, std::int64_t piece,
                                                const BeforeSum& before) override {
    return ring_.start_reduce_scatter(values, piece, before);
  }
  std::unique_ptr<Pending> start_all_gather(std::span<float> values, std::int64_t piece) override {
    return ring_.start_all_gather(values, piece);
  }
  std::unique_ptr<Pending> start_root_sum(std::span<float> values, int root, const BeforeSum& before) override {
    return ring_.start_root_sum(values, root, before);
  }
  std::unique_ptr<Pending> start_broadcast(std::span<float> values, int root) override {
    return ring_.start_broadcast(values, root);
  }
  void broadcast(std::span<std::byte> bytes, int root) override { beside().broadcast(bytes, root); }
  void gather(std::span<const std::byte> mine, std::span<std::byte> all, int root) override {
    beside().gather(mine, all, root);
  }
  void scatter(std::span<const std::byte> all, std::span<std::byte> mine, int root) override {
    beside().scatter(all, mine, root);
  }
  void barrier() override { beside().barrier(); }
  std::unique_ptr<NormTeam> make_norm_team(int span) override { return ring_.make_norm_team(span); }

 private:
  // Blocking calls use the ring after the device has finished all its work.
  Communicator& beside() {
    device_.finish_all();
    return ring_;
  }
  struct Waiting final : Pending {
    Waiting(std::unique_ptr<Pending> ring_sum, cuda::HostDevice& its_device)
        : sum(std::move(ring_sum)), device(its_device) {}
    bool done() override {
      device.go_on();
      return sum->done();
    }
    std::unique_ptr<Pending> sum;
    cuda::HostDevice& device;
  };
  Communicator& ring_;
  cuda::HostDevice& device_;
};

// Returns the function with which FakeNccl sums.
inline std::function<void(std::span<float>)> sum_over(Communicator& ring) {
  return [&ring](std::span<float> values) { ring.sum(values); };
}

// Returns the function with which FakeNccl sends and receives at the same time.
inline std::function<void(std::span<const float>, int, std::span<float>, int)> exchange_over(const RankGroup& group) {
  return [comm = std::shared_ptr<MPI_Comm>(new MPI_Comm(duplicate(group)), [](MPI_Comm* c) { delete c; })](
             std::span<const float> sent, int to, std::span<float> received, int from) {
    constexpr int tag = 0;
    MPI_Sendrecv(sent.data(), static_cast<int>(sent.size()), MPI_FLOAT, sent.empty() ? MPI_PROC_NULL : to, tag,
                 received.data(), static_cast<int>(received.size()), MPI_FLOAT, received.empty() ? MPI_PROC_NULL : from,
                 tag, *comm, MPI_STATUS_IGNORE);
  };
}

}  // namespace ringtrain
