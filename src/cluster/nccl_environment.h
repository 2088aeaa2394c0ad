// The environment variables that decide in which order NCCL adds. NCCL does not report its algorithm and its number of
// channels. With the same version, topology and variables it makes the same choice.
#pragma once

#include <map>
#include <string>

#include "cluster/communicator.h"

namespace ringtrain {

// Returns the variables that are set, with their values.
std::map<std::string, std::string> nccl_variables();

// Sets the variables of the run's first start again (`kept`: a communicator's record()), unless the user sets others
// now. Call it before NCCL reads them. NCCL_ALGO is set again only if `algorithm` is the one of that start.
void take_kept_variables(const std::string& algorithm, const std::map<std::string, std::string>& kept, bool reports);

// Sets NCCL_ALGO for `algorithm` unless the user has set it. Throws Error for a word that is not auto, ring or tree.
void choose_algorithm(const std::string& algorithm, int nccl_version);

// Throws Error if this rank's record is not rank 0's: ranks would wait for each other. Collective over `host`.
void compare_records(const std::map<std::string, std::string>& record, Communicator& host);

}  // namespace ringtrain
