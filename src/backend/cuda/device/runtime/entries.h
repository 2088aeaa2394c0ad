// The functions of libringtrain-cuda.so that the program calls. The program has functions of the same names in
// ringtrain::cuda, which open the library first (device/cuda_library.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"
#include "cluster/nccl_library.h"

namespace ringtrain::cuda::runtime {

std::unique_ptr<Device> make_device(int ordinal, const std::string& plan_cache);
int visible_devices();
std::vector<std::string> visible_uuids();
std::string describe_gpu(int ordinal);
int run_planner();
const NcclApi& nccl_api();

}  // namespace ringtrain::cuda::runtime
