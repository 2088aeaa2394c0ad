#include "data_prep/tables/name_table.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace ringtrain {

void NameTable::add(std::string_view name, std::uint64_t count) {
  if (2 * (size() + 1) > slots_.size()) grow();
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = std::hash<std::string_view>{}(name)&mask;
  for (; slots_[at] != 0; at = (at + 1) & mask) {
    if (this->name(slots_[at] - 1) == name) {
      counts_[slots_[at] - 1] += count;
      return;
    }
  }
  if (size() >= std::numeric_limits<std::uint32_t>::max() - 1) throw Error("more than 4 billion distinct names");
  pool_ += name;
  offsets_.push_back(pool_.size());
  counts_.push_back(count);
  slots_[at] = static_cast<std::uint32_t>(size());
}

void NameTable::grow() {
  slots_.assign(std::max<std::size_t>(1024, 2 * slots_.size()), 0);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = 0; i < size(); ++i) {
    std::size_t at = std::hash<std::string_view>{}(name(i)) & mask;
    while (slots_[at] != 0) at = (at + 1) & mask;
    slots_[at] = static_cast<std::uint32_t>(i + 1);
  }
}

NameTable NameTable::sorted() const {
  std::vector<std::uint32_t> order(size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [this](std::uint32_t a, std::uint32_t b) { return name(a) < name(b); });
  NameTable result;
  for (const std::uint32_t i : order) result.add(name(i), count(i));
  return result;
}

}  // namespace ringtrain
