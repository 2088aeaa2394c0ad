#include "run/instruction_sets.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/isa.h"
#include "base/error.h"
#include "base/log.h"

namespace ringtrain {
namespace {

std::string warning;  // not yet reported

}  // namespace

void agree_on_instruction_sets(const RankGroup& job) {
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
