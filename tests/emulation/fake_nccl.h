// NCCL for tests: a table of functions that behaves as a non-blocking NCCL does towards its caller (a call is in
// progress for a while, and only then is its work in the stream), records every call, notices what NCCL forbids, and
// can be told to fail. The sum itself is a function of the test's.
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

// The other rank of a communicator of two. Messages arrive in their order. The functions that are returned are asked
// until they say yes, and may begin their work at the first time.
class FakePeer {
 public:
  virtual ~FakePeer() = default;
  virtual std::function<bool()> meet() = 0;  // yes: the other rank has called it, too
  // Yes: the other rank has begun to receive.
  virtual std::function<bool()> send(std::span<const std::byte> bytes) = 0;
  virtual std::function<bool()> receive(std::span<std::byte> bytes) = 0;
};

class FakeNccl {
 public:
  // Of them live at the same time.
  static constexpr std::size_t most = 32;

  // `sum`: makes the sum over ranks of this rank's values, in place, when the stream comes to it. The other collectives
  // are made of it.
  FakeNccl(cuda::HostDevice& device, std::function<void(std::span<float>)> sum);
  // Of two ranks, for messages alone.
  FakeNccl(cuda::HostDevice& device, std::unique_ptr<FakePeer> peer);
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;
  ~FakeNccl();
  // The functions have no state but that of this FakeNccl: each one that lives has functions of its own.
  const NcclApi& api() const { return api_; }

  // "all_reduce 1024 +4096 of 20480 bytes, fp32, stream 2": offsets within what allocate() gave, so that ranks compare.
  std::vector<std::string> calls;
  std::vector<std::string> misuses;  // a call while another was in progress, after an abort, with a wrong handle, ...
  int count(const std::string& begin) const;

  int version = 22809;
  int polls_in_progress = 3;               // calls of async_error until a call has got through
  NcclResult async = NcclResult::success;  // what async_error says otherwise
  bool never_ready = false;                // a call stays in progress
  bool refuse_allocation = false, refuse_registration = false;
  std::function<void(NcclConfig&, int ranks, int rank)> on_init;
  // Two messages of a group, when the stream comes to them; an empty one is none. Blocks until they have passed.
  std::function<void(std::span<const float> sent, int to, std::span<float> received, int from)> exchange;

 private:
  template <std::size_t Slot>
  struct Functions;
  template <std::size_t... Slots>
  static NcclApi functions(std::size_t slot, std::index_sequence<Slots...>);
  // One way of a message.
  struct Crossing {  // of a group
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
  std::function<bool()> meeting_;  // of the call in progress; empty: it waits for nobody
  std::size_t slot_;
  std::vector<std::function<void()>> group_;  // between group_start and group_end
  bool grouped_ = false;
  Crossing crossing_;  // of the group
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
