#include "cluster/node_memory.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace ringtrain {

std::shared_ptr<SharedMemory> node_memory(const RankGroup& group, std::size_t bytes) {
  std::shared_ptr<SharedMemory> memory;
  std::string fault;
  const auto attempt = [&](const auto& take) {
    try {
      memory = take();
    } catch (const Error& error) {
      fault = error.what();
    }
  };
  const bool shares = group.node_size() > 1, makes = group.node_rank() == 0;
  if (shares && makes) attempt([&] { return SharedMemory::make(bytes); });
  const std::string name = group.gather_on_node(memory ? memory->name() : "").front();
  if (shares && !makes && !name.empty()) attempt([&] { return SharedMemory::open(name, bytes); });
  if (!memory) memory = std::make_shared<SharedMemory>(bytes);

  const std::vector<std::string> faults = group.gather_on_node(fault);
  const auto first = std::ranges::find_if(faults, [](const std::string& text) { return !text.empty(); });
  if (makes && first != faults.end())
    log_warning("the ranks on ", group.host(), " cannot all share one copy of the data set's tables or text (", *first,
                "): a rank that cannot share it reads a copy of its own, ", bytes, " bytes each");
  return memory;
}

}  // namespace ringtrain
