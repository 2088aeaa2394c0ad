// Plans one block of memory for buffers whose lifetimes are known, so that a program's size is exact before it is
// taken.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringtrain {

// Handle of a planned buffer.
struct Buffer {
  int id = -1;
  bool planned() const { return id >= 0; }
};

class ArenaPlan {
 public:
  static constexpr std::int64_t alignment = 64;  // bytes: a cache line, an AVX-512 register
  explicit ArenaPlan(std::int64_t alignment_bytes = alignment) : alignment_(alignment_bytes) {}

  // Lives from moment `first` to moment `last`, both included; moments are the program's own counting.
  Buffer add(std::string what, std::int64_t bytes, int first, int last);
  // Lives for the whole run: weights' copies, scratch.
  Buffer add(std::string what, std::int64_t bytes);

  // Assigns offsets: largest first, each at the lowest place that no buffer alive at the same time holds.
  void place();
  // The same for a program with `slots` micro-batches in flight: what lives from before moment `turn` until it or later
  // waits for its backward pass, and exists once per slot.
  void place(int turn, int slots);
  std::int64_t offset(Buffer buffer, int slot = 0) const;
  std::int64_t bytes() const { return bytes_; }  // after place()

  struct Item {
    std::string what;
    std::int64_t bytes = 0;
    int first = 0, last = 0;
    std::int64_t offset = -1;
    bool waits = false;  // for the backward pass: once per slot
  };
  const std::vector<Item>& items() const { return items_; }

 private:
  std::int64_t alignment_;
  std::vector<Item> items_;
  std::int64_t bytes_ = 0, slot_bytes_ = 0;
};

}  // namespace ringtrain
