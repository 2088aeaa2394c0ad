// The GPU of the tests. RINGTRAIN_TEST_DEVICE=host puts the host device in its place: the tests themselves can be tried
// on a machine that has no GPU.
#pragma once

#include <string>

#include "backend/cuda/device/device.h"
#include "cluster/session.h"

namespace ringtrain::cuda {

bool on_host_device();
// Why there is nothing to test on; "": there is a GPU.
std::string no_gpu();
// Made at the first call; of this rank, which may share it.
Device& gpu();
void release_gpu();
// The error that every call of the GPU gives since one of them left it unusable (CUDA's sticky errors); "": it works.
std::string why_gpu_is_unusable();
const Session& session();

// A file of that name in RINGTRAIN_GPU_OUT; "" when that is not set.
std::string out_file(const std::string& name);
// From the environment; `otherwise` when it is not set.
double setting(const char* name, double otherwise);

// The launch on a copy of `memory` on the GPU, and the copy brought back. The addresses of `memory` in the arguments,
// and in the memory itself, are those of the copy meanwhile.
void run_on_gpu(const KernelLaunch& launch, std::span<std::byte> memory);

}  // namespace ringtrain::cuda
