// Sends messages from one rank to another, for work that differs between ranks.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "cluster/rank_group.h"

namespace ringtrain {

// Messages with the same sender, receiver and tag arrive in the order in which they were sent. Other messages arrive in
// any order. A message has the length that its receiver expects. An empty message is not sent, and its receiver does
// not wait. Only the main thread may use a mailbox.
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
