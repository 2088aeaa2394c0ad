// The simulated NodeExchange: a rank that reads another rank's values takes time, and a rank that waits for values
// sleeps. The ranks are threads of one process, so their offers are ordinary memory.
//
// SMPI gives every rank its own copy of static variables. A simulated rank has one exchange.
#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "cluster/node_memory.h"
#include "memory.h"
#include "waits.h"

namespace ringtrain {
namespace {

struct Slot {
  std::size_t offered = 0, read = 0;  // offers so far; the reader counts `read`
  const float* values = nullptr;
  std::size_t count = 0;  // elements of the newest offer
};
// What a rank writes and the other ranks of its node see.
struct Desk {
  simulate::Bell* bell = nullptr;
  std::vector<Slot> slots;  // [place of the reader][slot]
};
std::vector<Desk*> desks;  // of the node's ranks
std::vector<std::span<const std::byte>> given;

int place(const std::vector<int>& node, int rank) {
  const auto at = std::ranges::lower_bound(node, rank);
  return at != node.end() && *at == rank ? static_cast<int>(at - node.begin()) : -1;
}

Desk& desk(const std::vector<int>& node, int rank) {
  return *desks[static_cast<std::size_t>(place(node, rank))];
}

// Returns a slot from `sender` to the reader at this place. There are `slots` slots in each direction.
Slot& slot_from(Desk& sender, int reader_place, int slot, int slots) {
  return sender.slots[static_cast<std::size_t>(reader_place * slots + slot)];
}

}  // namespace

// The ranks send each other the addresses of their desks. The program's ranks send the names of their shared memory in
// the same way, so a simulated start has the same collectives.
NodeExchange::NodeExchange(const RankGroup& group, std::vector<int> node, int slots)
    : group_(group), node_(std::move(node)), place_(place_of(group.rank())), slots_(slots) {
  auto* own = new Desk;
  own->bell = &simulate::own_bell();
  own->slots.resize(node_.size() * static_cast<std::size_t>(slots));
  std::ostringstream name;
  name << group.rank() << ' ' << own;
  desks.resize(node_.size());
  for (const std::string& text : group_.gather_on_node(name.str())) {
    int rank = -1;
    void* desk = nullptr;
    std::istringstream(text) >> rank >> desk;
    if (reaches(rank)) desks[static_cast<std::size_t>(place_of(rank))] = static_cast<Desk*>(desk);
  }
  group_.gather_on_node("");
}

void* NodeExchange::allocate(std::size_t bytes) {
  for (int i = 0; i < 2; ++i) group_.gather_on_node("");
  void* memory = bytes >= simulate::common_from ? simulate::common_memory(bytes) : std::calloc(bytes, 1);
  given.emplace_back(static_cast<const std::byte*>(memory), bytes);
  return memory;
}

void NodeExchange::release(void* memory) {
  std::erase_if(given, [&](const auto& region) { return region.data() == memory; });
}

// A lane calls this for its partners when it begins a step.
int NodeExchange::place_of(int rank) const {
  simulate::look_again();
  return place(node_, rank);
}

bool NodeExchange::holds(const float* values) const {
  const auto* address = reinterpret_cast<const std::byte*>(values);
  return node_.size() > 1 && std::ranges::any_of(given, [&](const auto& region) {
           return address >= region.data() && address < region.data() + region.size();
         });
}

void NodeExchange::send(int to, int slot, std::span<const float> values) {
  Slot& mine = slot_from(*desks[static_cast<std::size_t>(place_)], place(node_, to), slot, slots_);
  mine.values = values.data(), mine.count = values.size();
  ++mine.offered;
  simulate::ring(*desk(node_, to).bell);
}

void NodeExchange::send_copy(int to, int slot, std::span<const float> values) {
  simulate::take_time_to_read(values.size_bytes());
  send(to, slot, values);
}

bool NodeExchange::is_read(int to, int slot) const {
  const Slot& mine = slot_from(*desks[static_cast<std::size_t>(place_)], place(node_, to), slot, slots_);
  return mine.read == mine.offered;
}

const float* NodeExchange::receive(int from, int slot) const {
  const Slot& theirs = slot_from(desk(node_, from), place_, slot, slots_);
  return theirs.read == theirs.offered ? nullptr : theirs.values;
}

void NodeExchange::has_read(int from, int slot) {
  Slot& theirs = slot_from(desk(node_, from), place_, slot, slots_);
  simulate::take_time_to_read(theirs.count * sizeof(float));
  ++theirs.read;
  simulate::ring(*desk(node_, from).bell);
}

}  // namespace ringtrain
