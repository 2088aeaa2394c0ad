// Which bytes a call reads and writes: the table behind the race check, the check of addresses, and the recordings.
#pragma once

#include <span>
#include <vector>

#include "backend/cuda/dnn/operations.h"
#include "backend/cuda/dnn/rnn.h"
#include "backend/cuda/kernels/kernels.h"
#include "tests/emulation/race_check.h"

namespace ringtrain::cuda {

// Reads the TensorPlaces of the copies, which therefore must be in place when the launch is given.
std::vector<Region> regions_of(const KernelLaunch& launch);
// Where the memory of a launch holds addresses itself: each lies at one of these places (on the host). Whoever moves
// the memory must move them, too. An argument structure whose memory holds pointers is listed here.
std::vector<void**> addresses_in_memory(const KernelLaunch& launch);
std::vector<Region> regions_of(const DnnOperation& operation, std::span<void* const> tensors);
std::vector<Region> regions_of(const RnnPlan& plan, const RnnForward& arguments);
std::vector<Region> regions_of(const RnnPlan& plan, const RnnBackward& arguments);

}  // namespace ringtrain::cuda
