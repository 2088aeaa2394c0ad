// Messages from one rank of a group to another, in host memory or between devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "cluster/rank_group.h"

namespace ringtrain {

// A message under way. Its bytes stay where they are until done() has returned true or finish() has returned.
class Message {
 public:
  virtual ~Message() = default;
  virtual bool done() = 0;    // never blocks
  virtual void finish() = 0;  // throws GroupFailed when a rank of the group has failed
  virtual void look_out() {}  // to be called again and again by who waits for done(); throws as finish()
};

// One way that messages of a tag go.
struct Lane {
  int from = 0, to = 0, tag = 0;
};

// For the main thread only. Messages between two ranks with the same tag arrive in the order in which they were sent;
// both sides name the same number of bytes.
//
// Links between devices take addresses of the device. A message is sent after all work that the compute stream has when
// the message is started. After finish() the bytes need not be there yet: the compute stream waits for the message before
// it does what it is given from then on, and the host does not wait.
class Links {
 public:
  virtual ~Links() = default;
  // Memory for messages, where these links want it; given back before they end.
  virtual std::byte* allocate(std::int64_t bytes) = 0;
  virtual void release(std::byte* memory) = 0;
  virtual std::unique_ptr<Message> send(std::span<const std::byte> bytes, int to, int tag) = 0;
  virtual std::unique_ptr<Message> receive(std::span<std::byte> bytes, int from, int tag) = 0;
  // Lets messages advance; throws what has gone wrong. To be called while the host waits for a device.
  virtual void poll() {}
  // After an error: ends what is under way, so that memory can be given back. Throws nothing.
  virtual void abort(const std::string& why) { static_cast<void>(why); }
};

// In host memory, by MPI. Collective over the group.
std::unique_ptr<Links> make_links(const RankGroup& group);

}  // namespace ringtrain
