#include "nn/arena.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/rounding.h"

namespace ringtrain {

Buffer ArenaPlan::add(std::string what, std::int64_t bytes, int first, int last) {
  items_.push_back({std::move(what), round_up(bytes, alignment_), first, last, -1});
  return {static_cast<int>(items_.size()) - 1};
}

Buffer ArenaPlan::add(std::string what, std::int64_t bytes) {
  return add(std::move(what), bytes, std::numeric_limits<int>::min(), std::numeric_limits<int>::max());
}

// The slots come first. All waiting buffers of a slot are alive at the moment `turn`, so no two of them can share
// memory.
void ArenaPlan::place(int turn, int slots) {
  slot_bytes_ = 0;
  if (slots > 1)
    for (Item& item : items_) {
      item.waits = item.first > std::numeric_limits<int>::min() && item.first < turn && item.last >= turn;
      if (item.waits) item.offset = std::exchange(slot_bytes_, slot_bytes_ + item.bytes);
    }
  const std::int64_t begin = slots * slot_bytes_;
  std::vector<std::size_t> order(items_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return items_[a].bytes > items_[b].bytes; });
  std::vector<const Item*> placed;  // ordered by offset
  bytes_ = begin;
  for (std::size_t i : order) {
    Item& item = items_[i];
    if (item.waits) continue;
    std::int64_t at = begin;
    for (const Item* other : placed) {
      if (other->last < item.first || item.last < other->first) continue;
      if (at + item.bytes <= other->offset) break;
      at = std::max(at, other->offset + other->bytes);
    }
    item.offset = at;
    bytes_ = std::max(bytes_, at + item.bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), &item,
                                   [](const Item* a, const Item* b) { return a->offset < b->offset; }),
                  &item);
  }
}

std::int64_t ArenaPlan::offset(Buffer buffer, int slot) const {
  const Item& item = items_[static_cast<std::size_t>(buffer.id)];
  return item.offset + (item.waits ? slot * slot_bytes_ : 0);
}

}  // namespace ringtrain
