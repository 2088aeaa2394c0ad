#include "run/instruction_sets.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/isa.h"
#include "base/error.h"
#include "base/log.h"

namespace ringtrain {
namespace {

std::string warning;  // not yet reported

// oneDNN then uses no newer instructions, whatever the processor has. Convolutions take up to a hundred times as long.
void warn_of_limited_onednn() {
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"})
    if (const char* const limit = std::getenv(name); limit != nullptr && *limit != '\0')
      log_warning(name, " is ", limit, ": oneDNN uses no newer instructions, and a step may take far longer");
}

}  // namespace

void agree_on_instruction_sets(const RankGroup& job) {
  if (job.rank() == 0) warn_of_limited_onednn();
  const std::vector<std::string> of_ranks = job.gather(cat(cpu::instruction_level()));
  std::vector<int> levels;
  for (const std::string& text : of_ranks) levels.push_back(std::stoi(text));
  const auto [lowest, highest] = std::ranges::minmax_element(levels);
  if (*lowest == *highest) return;
  const std::string name = cpu::level_name(*lowest);
  if (job.rank() == 0) {
    const auto rank = lowest - levels.begin();
    const auto as_low = std::ranges::count(levels, *lowest);
    const std::string others = as_low > 1 ? cat(" and ", as_low - 1, " more") : "";
    warning =
        cat("the processors of this job have different instruction sets: rank ", rank, " on ",
            job.hosts()[static_cast<std::size_t>(rank)], others, as_low > 1 ? " have " : " has ", name,
            ", others up to ", cpu::level_name(*highest), ". All ranks compute with ", name,
            ", because copies of the model would differ by rounding otherwise; processors of one kind are faster");
  }
  cpu::lower_instruction_level(*lowest);
}

void report_lower_instruction_sets() {
  if (!warning.empty()) log_warning(std::exchange(warning, ""));
}

}  // namespace ringtrain
