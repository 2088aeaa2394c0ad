// Plans one block of memory for buffers with known lifetimes. The exact size of a program is thus known before memory
// is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringtrain {

// A handle of a planned buffer.
struct Buffer {
  int id = -1;
  bool planned() const { return id >= 0; }
};

class ArenaPlan {
 public:
  static constexpr std::int64_t alignment = 64;  // bytes: a cache line, an AVX-512 register
  explicit ArenaPlan(std::int64_t alignment_bytes = alignment) : alignment_(alignment_bytes) {}

  // Adds a buffer that lives from moment `first` to moment `last`, both included. The program numbers its own moments.
  Buffer add(std::string what, std::int64_t bytes, int first, int last);
  // Adds a buffer that lives for the whole run, for example copies of weights or scratch memory.
  Buffer add(std::string what, std::int64_t bytes);

  // Assigns offsets. The largest buffer comes first. Each buffer gets the lowest place that no buffer alive at the same
  // time uses. In a program with several micro-batches in flight, a buffer that lives from before moment `turn` until
  // `turn` or later waits for its backward pass. Such a buffer exists once per slot.
  void place(int turn = 0, int slots = 1);
  std::int64_t offset(Buffer buffer, int slot = 0) const;
  std::int64_t bytes() const { return bytes_; }  // known after place()

  struct Item {
    std::string what;
    std::int64_t bytes = 0;
    int first = 0, last = 0;
    std::int64_t offset = -1;
    bool waits = false;  // whether it waits for the backward pass; then there is one copy per slot
  };
  const std::vector<Item>& items() const { return items_; }

 private:
  std::int64_t alignment_;
  std::vector<Item> items_;
  std::int64_t bytes_ = 0, slot_bytes_ = 0;
};

}  // namespace ringtrain
