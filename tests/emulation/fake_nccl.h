// FakeNccl stands in for NCCL in tests. Its table of functions behaves like a non-blocking NCCL: a call is in progress
// for a while, and its work is in the stream only after that. FakeNccl records every call, notices misuse, and can be
// told to fail. The test provides the function that computes sums.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cluster/nccl_library.h"
#include "tests/emulation/host_device.h"

namespace ringtrain {

// The other rank of a communicator of two ranks. Messages arrive in the order in which they were sent. The returned
// functions are called until they return true, and may begin their work at the first call.
class FakePeer {
 public:
  virtual ~FakePeer() = default;
  virtual std::function<bool()> meet() = 0;  // returns true when the other rank has called it, too
  // The returned function returns true when the other rank has begun to receive.
  virtual std::function<bool()> send(std::span<const std::byte> bytes) = 0;
  virtual std::function<bool()> receive(std::span<std::byte> bytes) = 0;
};

class FakeNccl {
 public:
  // The largest number of FakeNccl objects that can live at the same time.
  static constexpr std::size_t most = 32;

  // `sum` replaces this rank's values by the sum over ranks when the stream comes to it. The other collectives are made
  // from it.
  FakeNccl(cuda::HostDevice& device, std::function<void(std::span<float>)> sum);
  // For two ranks that exchange messages only. The first sum throws Error.
  FakeNccl(cuda::HostDevice& device, std::unique_ptr<FakePeer> peer);
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;
  ~FakeNccl();
  // The functions have no state except that of this FakeNccl. Each living FakeNccl therefore has functions of its own.
  const NcclApi& api() const { return api_; }

  // Looks like "all_reduce 1024 at +4096 of 20480 bytes, fp32, stream 2". Offsets count from the memory that allocate()
  // gave, so that ranks can be compared.
  std::vector<std::string> calls;
  std::vector<std::string> misuses;  // calls during another call, after an abort, with a wrong handle, ...
  int count(const std::string& begin) const;

  int version = 22809;
  int polls_in_progress = 3;               // calls of async_error until a call is done
  NcclResult async = NcclResult::success;  // what async_error returns otherwise
  bool never_ready = false;                // calls stay in progress for ever
  bool refuse_allocation = false, refuse_registration = false;
  std::function<void(NcclConfig&, int ranks, int rank)> on_init;
  // Exchanges the two messages of a group when the stream comes to them. An empty span means no message. Blocks until
  // both messages have passed.
  std::function<void(std::span<const float> sent, int to, std::span<float> received, int from)> exchange;

 private:
  struct Functions;
  template <std::size_t... Slots>
  static NcclApi functions(std::size_t slot, std::index_sequence<Slots...>);
  // The two messages of a group, one for each direction.
  struct Crossing {
    std::span<const float> sent = {};
    std::span<float> received = {};
    int to = -1, from = -1;
    void* stream = nullptr;
  };
  NcclResult cross(const Crossing& message);
  void give_crossing();
  NcclResult pass(const char* what, void* memory, std::size_t bytes, void* stream, bool sends);
  NcclResult begin(std::string call, std::function<void()> when_through = {});
  std::string place(const void* memory, std::size_t bytes);
  void give(const char* what, void* memory, std::size_t count, NcclType type, void* stream,
            std::function<void(std::span<float>)> change);

  cuda::HostDevice& device_;
  std::function<void(std::span<float>)> sum_;
  NcclApi api_;
  std::unique_ptr<FakePeer> peer_;
  bool met_ = false;
  std::function<bool()> meeting_;  // for the call in progress; empty if it waits for no rank
  std::size_t slot_;
  std::vector<std::function<void()>> group_;  // the calls between group_start and group_end
  bool grouped_ = false;
  Crossing crossing_;  // the messages of the open group
  int rank_ = 0, ranks_ = 1;
  int open_polls_ = 0;
  bool in_progress_ = false, initialised_ = false, ended_ = false;
  std::function<void()> when_through_;
  struct Memory {
    char* begin;
    std::size_t bytes;
    bool registered;
  };
  std::vector<Memory> memory_;
};

}  // namespace ringtrain
