// Messages from one rank of a group to another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "cluster/rank_group.h"

namespace ringtrain {

// A message under way. Its bytes stay where they are until done() has returned true or finish() has returned.
class Message {
 public:
  virtual ~Message() = default;
  virtual bool done() = 0;    // never blocks
  virtual void finish() = 0;  // throws GroupFailed when a rank of the group has failed
};

// For the main thread only. Messages between two ranks with the same tag arrive in the order in which they were sent;
// both sides name the same number of bytes.
class Links {
 public:
  virtual ~Links() = default;
  virtual std::unique_ptr<Message> send(std::span<const std::byte> bytes, int to, int tag) = 0;
  virtual std::unique_ptr<Message> receive(std::span<std::byte> bytes, int from, int tag) = 0;
};

// Collective over the group.
std::unique_ptr<Links> make_links(const RankGroup& group);

}  // namespace ringtrain
