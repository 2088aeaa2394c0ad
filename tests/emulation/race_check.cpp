#include "tests/emulation/race_check.h"

#include <algorithm>

#include "base/error.h"

namespace ringtrain::cuda {

void join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size(), 0);
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

RaceCheck::Ranges::iterator RaceCheck::split(std::uintptr_t at) {
  auto next = ranges_.upper_bound(at);
  const auto here = std::prev(next);
  return here->first == at ? here : ranges_.emplace_hint(next, at, here->second);
}

std::string RaceCheck::access(std::size_t stream, const Clock& clock, const std::string& name,
                              const std::vector<Region>& regions) {
  std::string found;
  const Use now{stream, clock[stream], name};
  const auto check = [&](const Use& before, bool write, std::uintptr_t where) {
    if (before.number == 0 || before.stream == stream || !found.empty()) return;
    const std::int64_t known = before.stream < clock.size() ? clock[before.stream] : 0;
    if (known < before.number)
      found = cat(name, " (stream ", stream, ") is not ordered after ", before.name, " (stream ", before.stream,
                  "), which ", write ? "writes" : "reads", " the same memory at ", where);
  };
  for (const Region& region : regions) {
    if (region.bytes <= 0) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(region.begin);
    const auto last = split(begin + static_cast<std::uintptr_t>(region.bytes));
    for (auto at = split(begin); at != last; ++at) {
      check(at->second.write, true, at->first);
      if (region.write)
        for (const Use& read : at->second.reads) check(read, false, at->first);
    }
    if (region.write) {
      const auto first = split(begin);
      ranges_.erase(std::next(first), last);  // the pieces become one range again
      first->second = {now, {}};
      continue;
    }
    for (auto at = split(begin); at != last; ++at) {
      std::vector<Use>& reads = at->second.reads;
      const auto same = std::find_if(reads.begin(), reads.end(), [&](const Use& use) { return use.stream == stream; });
      if (same == reads.end())
        reads.push_back(now);
      else
        *same = now;
    }
  }
  return found;
}

void RaceCheck::forget(const void* begin, std::int64_t bytes) {
  const auto from = reinterpret_cast<std::uintptr_t>(begin);
  const auto last = split(from + static_cast<std::uintptr_t>(bytes));
  const auto first = split(from);
  ranges_.erase(std::next(first), last);
  first->second = {};
}

}  // namespace ringtrain::cuda
