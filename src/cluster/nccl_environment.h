// The environment variables that decide in which order NCCL adds. NCCL does not tell which algorithm and how many
// channels it has chosen. With the same version, topology and variables it makes the same choice.
#pragma once

#include <map>
#include <string>

#include "cluster/communicator.h"

namespace ringtrain {

// The variables that are set, with their values.
std::map<std::string, std::string> nccl_variables();

// Before NCCL reads its variables: sets those of the run's first start (`kept`, a communicator's record()) again, where
// the user sets no others now. NCCL_ALGO was made from communication.algorithm (`algorithm`), so it goes with that.
void take_kept_variables(const std::string& algorithm, const std::map<std::string, std::string>& kept, bool reports);

// Sets NCCL_ALGO for `algorithm` unless the user has set it. Throws Error for a word that is not auto, ring or tree.
void choose_algorithm(const std::string& algorithm, int nccl_version);

// Throws Error where this rank's record is not rank 0's: the ranks would wait for each other. Collective over `host`.
void compare_records(const std::map<std::string, std::string>& record, Communicator& host);

}  // namespace ringtrain
