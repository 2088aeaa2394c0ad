// Says which bytes a call reads and writes. The race check, the check of addresses and the recordings use it.
#pragma once

#include <span>
#include <vector>

#include "backend/cuda/dnn/operations.h"
#include "backend/cuda/kernels/kernels.h"
#include "tests/emulation/race_check.h"

namespace ringtrain::cuda {

// Reads the tables that the launch points to, such as the TensorPlaces of a copy or the NormRanges of a norm. They must
// therefore be in memory when the launch is given.
std::vector<Region> regions_of(const KernelLaunch& launch);
// The memory that a launch points to may itself hold addresses. This function returns the places of these addresses, as
// pointers of the host. Code that moves the memory must change the addresses, too. Every argument structure whose
// memory holds pointers must be handled here.
std::vector<void**> addresses_in_memory(const KernelLaunch& launch);
std::vector<Region> regions_of(const DnnOperation& operation, std::span<void* const> tensors);
std::vector<Region> regions_of(const RnnPlan& plan, const RnnForward& arguments);
std::vector<Region> regions_of(const RnnPlan& plan, const RnnBackward& arguments);

}  // namespace ringtrain::cuda
