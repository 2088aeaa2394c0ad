#include "study/slots.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "base/error.h"
#include "base/machine_share.h"
#include "cluster/binding.h"

namespace ringtrain {
namespace {

struct FreeNode {
  std::vector<std::size_t> free;  // places of its free slots
  std::int64_t size = 0;          // all of its slots
};

// Returns the cores of this process with their CPUs. With a quota of CPU time, the last cores are left out.
std::vector<std::vector<int>> own_cores() {
  const std::vector<int> cpus = own_cpus();
  std::vector<int> firsts;
  std::vector<std::vector<int>> cores;
  for (const int cpu : cpus) {
    const int first = cores_of({cpu}).front();
    const auto known = std::ranges::find(firsts, first);
    if (known == firsts.end()) {
      firsts.push_back(first);
      cores.push_back({cpu});
    } else {
      cores[static_cast<std::size_t>(known - firsts.begin())].push_back(cpu);
    }
  }
  for (auto left = static_cast<std::ptrdiff_t>(cpus.size()); cores.size() > 1;) {
    left -= std::ssize(cores.back());
    if (left < usable_cpus()) break;
    cores.pop_back();
  }
  return cores;
}

}  // namespace

Slots::Slots(std::vector<Slot> slots) : slots_(std::move(slots)), taken_(slots_.size(), 0) {}

std::optional<std::vector<std::size_t>> Slots::take(std::int64_t ranks) {
  std::vector<FreeNode> nodes;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (i == 0 || slots_[i].node != slots_[i - 1].node) nodes.emplace_back();
    ++nodes.back().size;
    if (!taken_[i]) nodes.back().free.push_back(i);
  }
  const bool fits = std::ranges::any_of(nodes, [&](const FreeNode& node) { return node.size >= ranks; });
  if (fits) std::erase_if(nodes, [&](const FreeNode& node) { return std::ssize(node.free) < ranks; });
  std::ranges::stable_sort(nodes, [&](const FreeNode& a, const FreeNode& b) {
    return fits ? a.free.size() < b.free.size() : a.free.size() > b.free.size();
  });
  std::vector<std::size_t> places;
  for (const FreeNode& node : nodes)
    for (const std::size_t place : node.free)
      if (std::ssize(places) < ranks) places.push_back(place);
  if (std::ssize(places) < ranks) return std::nullopt;
  std::ranges::sort(places);
  for (const std::size_t place : places) taken_[place] = 1;
  return places;
}

void Slots::give_back(const std::vector<std::size_t>& places) {
  for (const std::size_t place : places) taken_[place] = 0;
}

std::vector<Slot> slots_of_machine(std::int64_t count, int gpus) {
  const std::vector<std::vector<int>> cores = own_cores();
  if (count == 0) count = gpus > 0 ? gpus : std::ssize(cores);
  const std::int64_t each = std::max<std::int64_t>(1, std::ssize(cores) / count);
  std::vector<Slot> slots;
  for (std::int64_t i = 0; i < count; ++i) {
    Slot& slot = slots.emplace_back();
    for (std::int64_t c = i * each; c < (i + 1) * each; ++c) {
      const std::vector<int>& core = cores[static_cast<std::size_t>(c % std::ssize(cores))];
      slot.cpus.insert(slot.cpus.end(), core.begin(), core.end());
    }
    std::ranges::sort(slot.cpus);
    if (gpus > 0) slot.gpu = static_cast<int>(i % gpus);
  }
  return slots;
}

std::vector<int> numbers_of_nodes(const std::string& text) {
  std::vector<int> numbers;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    int number = 0, times = 1;
    const char* const last = part.data() + part.size();
    auto at = std::from_chars(part.data(), last, number);
    const bool repeats = at.ec == std::errc() && std::string_view(at.ptr, last).starts_with("(x");
    if (repeats) at = std::from_chars(at.ptr + 2, last, times);
    if (at.ec != std::errc() || std::string_view(at.ptr, last) != (repeats ? ")" : "") || number < 1 || times < 1)
      throw Error(cat("Slurm says '", text, "' of the job's nodes, expected numbers such as 4(x2),3"));
    numbers.insert(numbers.end(), static_cast<std::size_t>(times), number);
  }
  return numbers;
}

std::vector<Slot> slots_of_job(const std::vector<std::string>& hosts, const std::string& tasks, std::int64_t count) {
  const std::vector<int> numbers = numbers_of_nodes(tasks);
  std::vector<Slot> slots;
  for (std::size_t n = 0; n < std::min(hosts.size(), numbers.size()); ++n)
    slots.insert(slots.end(), static_cast<std::size_t>(numbers[n]), {hosts[n], {}, -1});
  if (count > std::ssize(slots))
    throw Error(cat("--ranks is ", count, ", and the Slurm job has ", slots.size(), " tasks"),
                "leave it out to use all of them, or ask for more with --ntasks-per-node");
  if (count > 0) slots.resize(static_cast<std::size_t>(count));
  return slots;
}

}  // namespace ringtrain
