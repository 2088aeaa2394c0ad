// The GPU of the tests. With RINGTRAIN_TEST_DEVICE=host, the host device replaces it, so that the tests themselves can
// be tried on a machine without a GPU. RINGTRAIN_TEST_FAULT then plants a fault in it, such as a kernel that hangs
// (tests/emulation/faulty_device.h).
#pragma once

#include <string>

#include "backend/cuda/device/device.h"
#include "cluster/session.h"

namespace ringtrain::cuda {

bool on_host_device();
// Returns the reason why there is no GPU to test on, or "" if there is one.
std::string no_gpu();
// Returns this rank's GPU, which other ranks may share. The first call makes it.
Device& gpu();
void release_gpu();
double seconds_to_start();  // that the first call of gpu() took
// Returns Device::why_unusable(), or "" if gpu() was never called.
std::string why_gpu_is_unusable();
const Session& session();

// Returns the path of a file of that name in RINGTRAIN_GPU_OUT, or "" if RINGTRAIN_GPU_OUT is not set.
std::string out_file(const std::string& name);
// Returns the text in an environment variable, or "" if it is not set.
std::string variable(const char* name);
// Returns the number in an environment variable, or `otherwise` if it is not set.
double setting(const char* name, double otherwise);

// Runs the launch on a copy of `memory` on the GPU, and copies the result back. During the launch, addresses of
// `memory` in the arguments and in the memory itself are replaced by those of the copy.
void run_on_gpu(const KernelLaunch& launch, std::span<std::byte> memory);

}  // namespace ringtrain::cuda
