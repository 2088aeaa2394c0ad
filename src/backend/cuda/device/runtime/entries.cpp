#include "backend/cuda/device/cuda_library.h"
#include "cuda_build_info.h"  // written by the Makefile
#include "interface.h"        // written by the Makefile

// The entry of libringtrain-cuda.so (device/cuda_library.h).
extern "C" {
extern const ringtrain::cuda::CudaLibrary ringtrain_cuda_library;
const ringtrain::cuda::CudaLibrary ringtrain_cuda_library = {
    .interface = RINGTRAIN_INTERFACE,
    .versions = RINGTRAIN_CUDA,
    .cuda_home = RINGTRAIN_CUDA_HOME,
    .make_runtime_device = ringtrain::cuda::runtime::make_device,
    .visible_devices = ringtrain::cuda::runtime::visible_devices,
    .visible_uuids = ringtrain::cuda::runtime::visible_uuids,
    .describe_gpu = ringtrain::cuda::runtime::describe_gpu,
    .run_planner = ringtrain::cuda::runtime::run_planner,
    .nccl_api = ringtrain::cuda::runtime::nccl_api,
};
}
