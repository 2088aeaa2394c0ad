#include "data_prep/common/command.h"

#include "base/error.h"

namespace ringtrain {

std::string one_input(const CLI::App& command, const std::vector<std::string>& words) {
  if (words.size() == 1) return words[0];
  const std::string own = "ringtrain-data " + command.get_name();
  throw Error(cat(own, ": expected one ", operands_of(command), ", found ", words.size()), own + " --help");
}

void add_validation(CLI::App& command, std::optional<double>& share, const std::string& help) {
  command.add_option("--validation", share, help)->type_name("SHARE")->check(number(0));
}

}  // namespace ringtrain
