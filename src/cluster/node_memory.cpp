#include "cluster/node_memory.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace ringtrain {

namespace {

// Does the work. If it throws Error, `fault` becomes its message, unless there is one already.
template <class Work>
void attempt(std::string& fault, const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    if (fault.empty()) fault = error.what();
  }
}

// Returns the fault of the first rank of this node that has one, or "". Collective over the group.
std::string first_fault(const RankGroup& group, const std::string& own) {
  for (const std::string& fault : group.gather_on_node(own))
    if (!fault.empty()) return fault;
  return "";
}

}  // namespace

std::shared_ptr<SharedMemory> node_memory(const RankGroup& group, std::size_t bytes) {
  std::shared_ptr<SharedMemory> memory;
  std::string fault;
  const bool shares = group.node_size() > 1, makes = group.node_rank() == 0;
  if (shares && makes) attempt(fault, [&] { memory = SharedMemory::make(bytes); });
  const std::string name = group.gather_on_node(memory ? memory->name() : "").front();
  if (shares && !makes && !name.empty()) attempt(fault, [&] { memory = SharedMemory::open(name, bytes); });
  if (!memory) memory = std::make_shared<SharedMemory>(bytes);

  const std::string first = first_fault(group, fault);
  if (makes && !first.empty())
    log_warning("the ranks on ", group.host(), " cannot all share one copy of the data set's tables or text (", first,
                "): a rank that cannot share it reads a copy of its own, ", bytes, " bytes each");
  return memory;
}

NodeExchange::NodeExchange(const RankGroup& group, std::vector<int> node, int slots)
    : group_(group), node_(std::move(node)), place_(place_of(group.rank())), slots_(slots) {
  const std::size_t lines = node_.size() * static_cast<std::size_t>(slots);
  allocate(lines * (sizeof(Offer) + sizeof(Receipt)) + static_cast<std::size_t>(slots) * most_copied * sizeof(float));
}

void* NodeExchange::allocate(std::size_t bytes) {
  Region region;
  std::string fault;
  if (node_.size() > 1) attempt(fault, [&] { region.own = SharedMemory::make(bytes); });
  const std::vector<std::string> offers =
      group_.gather_on_node(region.own ? cat(group_.rank(), ' ', region.own->name()) : "");
  for (const int rank : node_) {
    const std::string start = cat(rank, ' ');
    const auto offer = std::ranges::find_if(offers, [&](const std::string& text) { return text.starts_with(start); });
    attempt(fault, [&] {
      if (offer == offers.end()) throw Error(cat("rank ", rank, " has no memory to share"));
      region.of_place.push_back(rank == group_.rank() ? region.own
                                                      : SharedMemory::open(offer->substr(start.size()), bytes));
    });
  }
  const std::string first = first_fault(group_, fault);
  if (!first.empty()) {
    region.of_place.clear();
    const bool is_first = std::ranges::none_of(regions_, [](const Region& r) { return r.of_place.empty(); });
    if (node_.size() > 1 && group_.node_rank() == 0 && is_first)
      log_warning("the ranks on ", group_.host(), " cannot read each other's memory (", first,
                  "): they sum gradients by messages, which is slower");
  }
  if (!region.own) region.own = std::make_shared<SharedMemory>(bytes);
  regions_.push_back(std::move(region));
  return regions_.back().own->bytes().data();
}

void NodeExchange::release(void* memory) {
  for (Region& region : regions_)
    if (region.own && region.own->bytes().data() == memory) region = {};  // the other regions keep their numbers
}

int NodeExchange::place_of(int rank) const {
  const auto at = std::ranges::lower_bound(node_, rank);
  return at != node_.end() && *at == rank ? static_cast<int>(at - node_.begin()) : -1;
}

std::pair<std::uint64_t, std::uint64_t> NodeExchange::find(const float* values) const {
  const auto* address = reinterpret_cast<const std::uint8_t*>(values);
  for (std::size_t r = 0; r < regions_.size(); ++r) {
    if (regions_[r].of_place.empty()) continue;
    const std::span<const std::uint8_t> own = regions_[r].own->bytes();
    if (address >= own.data() && address < own.data() + own.size())
      return {r, static_cast<std::uint64_t>(address - own.data())};
  }
  return {regions_.size(), 0};
}

bool NodeExchange::holds(const float* values) const {
  return !regions_[0].of_place.empty() && find(values).first < regions_.size();
}

std::byte* NodeExchange::bytes(int place) const {
  return reinterpret_cast<std::byte*>(regions_[0].of_place[static_cast<std::size_t>(place)]->bytes().data());
}

// The memory of a rank holds its offers [to][slot], its receipts [from][slot] and its copies [slot].
NodeExchange::Offer& NodeExchange::offer(int from, int to, int slot) const {
  return reinterpret_cast<Offer*>(bytes(from))[to * slots_ + slot];
}

NodeExchange::Receipt& NodeExchange::receipt(int from, int to, int slot) const {
  auto* first = reinterpret_cast<Receipt*>(bytes(to) + node_.size() * static_cast<std::size_t>(slots_) * sizeof(Offer));
  return first[from * slots_ + slot];
}

float* NodeExchange::copies(int place, int slot) const {
  const std::size_t lines = node_.size() * static_cast<std::size_t>(slots_);
  return reinterpret_cast<float*>(bytes(place) + lines * (sizeof(Offer) + sizeof(Receipt))) +
         static_cast<std::size_t>(slot) * most_copied;
}

void NodeExchange::send(int to, int slot, std::span<const float> values) {
  Offer& mine = offer(place_, place_of(to), slot);
  std::tie(mine.region, mine.offset) = find(values.data());
  const std::atomic_ref count(mine.count);
  count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

void NodeExchange::send_copy(int to, int slot, std::span<const float> values) {
  if (values.size() > most_copied)
    throw Error(cat("a copy of ", values.size(), " values was asked for, expected at most ", most_copied));
  float* copy = copies(place_, slot);
  std::ranges::copy(values, copy);
  send(to, slot, {copy, values.size()});
}

bool NodeExchange::is_read(int to, int slot) const {
  const int place = place_of(to);
  return std::atomic_ref(receipt(place_, place, slot).count).load(std::memory_order_acquire) ==
         offer(place_, place, slot).count;
}

const float* NodeExchange::receive(int from, int slot) const {
  const int place = place_of(from);
  const Offer& theirs = offer(place, place_, slot);
  const std::uint64_t count = std::atomic_ref(const_cast<std::uint64_t&>(theirs.count)).load(std::memory_order_acquire);
  if (count == receipt(place, place_, slot).count) return nullptr;
  const Region& region = regions_[theirs.region];
  return reinterpret_cast<const float*>(region.of_place[static_cast<std::size_t>(place)]->bytes().data() +
                                        theirs.offset);
}

void NodeExchange::has_read(int from, int slot) {
  const std::atomic_ref count(receipt(place_of(from), place_, slot).count);
  count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

}  // namespace ringtrain
