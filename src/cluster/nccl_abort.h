// The end of an NCCL communicator after an error.
#pragma once

#include "cluster/nccl_library.h"

namespace ringtrain {

// ncclCommAbort, which may hang itself (in a driver call, on a dead network): it gets a thread and a deadline. When
// that passes, the rank says so and ends the whole job (abort_job): device memory could not be given back without
// hanging too. Throws nothing.
void abort_nccl(const NcclApi& api, NcclComm* comm, const std::string& why, double deadline_seconds = 10);

}  // namespace ringtrain
