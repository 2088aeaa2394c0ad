// Sends messages from one rank of a group to another: by Links, in host memory or between devices, or by a Mailbox.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cluster/communicator.h"
#include "cluster/rank_group.h"

namespace ringtrain {

struct NcclApi;
namespace cuda {
class Device;
}

// Measures how long the passes of a rank wait for other ranks.
class WaitTimer {
 public:
  virtual ~WaitTimer() = default;
  // Calls `wait` and measures the wait. A host's timer measures how long the host waits. On a device, `wait` only
  // queues the wait, and a device's timer measures how long the compute stream waits.
  virtual void time(const std::function<void()>& wait) = 0;
  // Returns the seconds of all waits since the last call. A device's timer counts only waits that have ended. It leaves
  // the others to a later call.
  virtual double take_seconds() = 0;
};

// Names all messages with one tag from one rank to another.
struct Lane {
  int from = 0, to = 0, tag = 0;
};

// Only the main thread may use links. Messages between two ranks with the same tag arrive in the order in which they
// were sent. Both sides give the same number of bytes.
//
// Links between devices take addresses of the device. A message is sent after all work that the compute stream had when
// the message was started. After finish() the message may still be under way. The host does not wait for it, but work
// that is given to the compute stream after finish() waits.
class Links {
 public:
  virtual ~Links() = default;
  // Returns memory for messages. The caller releases it before the links are destroyed.
  virtual std::byte* allocate(std::int64_t bytes) = 0;
  virtual void release(std::byte* memory) = 0;
  virtual std::unique_ptr<Pending> send(std::span<const std::byte> bytes, int to, int tag) = 0;
  virtual std::unique_ptr<Pending> receive(std::span<std::byte> bytes, int from, int tag) = 0;
  // Makes a timer for waits in the finish() of messages.
  virtual std::unique_ptr<WaitTimer> make_timer() = 0;
  // Makes progress, and throws the error of a rank or a message. The host calls it while it waits for a device.
  virtual void poll() {}
  // Ends all messages under way after an error, so that memory can be freed. Throws nothing.
  virtual void abort(const std::string& why) { static_cast<void>(why); }
};

// Makes links in host memory by MPI. Collective over the group.
std::unique_ptr<Links> make_links(const RankGroup& group);

// Makes links between devices through host memory. A sent message is copied to page-locked memory, and `host` sends it
// from there. A received message takes the same way back. finish() waits until the host's part of a message is done.
// All messages must be in memory of allocate(). `device` and `host` must outlive the result.
std::unique_ptr<Links> make_staged_links(cuda::Device& device, Links& host);

struct NcclLinkOptions {
  int rank = 0;  // rank in the group of `host`
  // All lanes of this rank. They are made in this order, and each needs both of its ranks. A chain of ranks does not
  // deadlock if each rank begins with the lane to the rank before it.
  std::vector<Lane> lanes = {};
  double timeout_seconds = 480;  // for a start, and for a message after this rank's part is ready
};

// Makes links between devices by NCCL.
//
// A lane is one direction between two ranks. Each lane has a communicator and a stream of its own. A send waits in its
// stream until the other rank receives. Nothing else is in that stream, so two messages in opposite directions cannot
// wait for each other. There are few lanes, and each uses few blocks of a GPU, so all lanes run while passes run.
//
// In the picture, stage s computes the forward passes F0 and F1 and the backward pass B0. Events connect the streams:
// e0 says that F0 has ended, r0 says that the message for B0 has arrived.
//
//   compute   F0 |e0        F1 |e1 ...   |wait r0| B0
//                 \             \            /
//   lane s>s+1     wait e0|send 0   ...     /
//   lane s+1>s      receive 0 |r0 ---------'
//
// Collective over the ranks of the lanes. `api` is called for each lane and returns NCCL's functions. `device`, `host`
// and the functions must outlive the result. Throws Error, on every rank that notices it, if a rank is not in time.
std::unique_ptr<Links> make_nccl_links(const std::function<const NcclApi&()>& api, cuda::Device& device, Links& host,
                                       const NcclLinkOptions& options);

// Sends messages in host memory, for work that differs between ranks. Messages with the same sender, receiver and tag
// arrive in the order in which they were sent. Other messages arrive in any order. A message has the length that its
// receiver expects. An empty message is not sent, and its receiver does not wait. Only the main thread may use a
// mailbox.
class Mailbox {
 public:
  virtual ~Mailbox() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Returns when the receiver has the message or MPI has copied it; the caller may then change `bytes`.
  virtual void send(int to, int tag, std::span<const std::byte> bytes) = 0;
  // Returns at once. `bytes` must not change until finish_sending() has returned.
  virtual void start_sending(int to, int tag, std::span<const std::byte> bytes) = 0;
  virtual void finish_sending() = 0;
  // Waits for the message.
  virtual void receive(int from, int tag, std::span<std::byte> bytes) = 0;
  // Returns a rank whose message with this tag can be received without waiting, or nothing if there is no message.
  virtual std::optional<int> sender_of_waiting(int tag) = 0;
  // Pauses between two tests. It lets other threads run, and throws if another rank has failed.
  virtual void pause() = 0;
};

// Makes a mailbox. Collective over the group.
std::unique_ptr<Mailbox> make_mailbox(const RankGroup& group);

}  // namespace ringtrain
