// Ends an NCCL communicator after an error.
#pragma once

#include "cluster/nccl_library.h"

namespace ringtrain {

// Calls ncclCommAbort in a thread of its own, because the call itself may hang (in a driver call, on a dead network).
// After the deadline, the rank prints a message and ends the whole job (abort_job), because freeing device memory would
// hang too. Throws nothing.
void abort_nccl(const NcclApi& api, NcclComm* comm, const std::string& why, double deadline_seconds = 10);

}  // namespace ringtrain
