// The GPUs that this process sees, and the table of libringtrain-cuda.so (runtime.h).
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include "backend/cuda/device/libraries.h"
#include "backend/cuda/device/runtime/runtime.h"
#include "base/error.h"
#include "cuda_build_info.h"  // written by the Makefile
#include "interface.h"        // written by the Makefile

namespace ringtrain::cuda {
namespace {

constexpr int oldest_capability = 80;  // bf16 and TF32 need it; the kernels are built for no older GPU

std::string visible_setting() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? "" : cat(" (CUDA_VISIBLE_DEVICES is '", visible, "')");
}

std::string dashed(const CUuuid& uuid) {
  const char* digits = "0123456789abcdef";
  std::string text;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += digits[byte / 16];
    text += digits[byte % 16];
  }
  return text;
}

std::string version_text(int version) {
  return cat(version / 1000, '.', version % 1000 / 10);
}

// Returns "GPU-5fbe4b2a-...", or "MIG-..." for a MIG slice, as nvidia-smi -L prints it.
std::string device_uuid(int ordinal) {
  // cuDeviceGetUuid names the whole GPU, and cuDeviceGetUuid_v2 names the MIG slice if there is one. cuDeviceGet takes
  // the runtime's ordinals. None of these calls needs a context.
  void* driver = driver_library();
  const auto initialise = reinterpret_cast<decltype(&cuInit)>(library_function(driver, "cuInit"));
  const auto get_device = reinterpret_cast<decltype(&cuDeviceGet)>(library_function(driver, "cuDeviceGet"));
  const auto whole = reinterpret_cast<decltype(&cuDeviceGetUuid)>(library_function(driver, "cuDeviceGetUuid"));
  const auto slice = reinterpret_cast<decltype(&cuDeviceGetUuid)>(dlsym(driver, "cuDeviceGetUuid_v2"));
  CUdevice device = 0;
  CUuuid uuid{}, part{};
  if (initialise(0) != CUDA_SUCCESS || get_device(&device, ordinal) != CUDA_SUCCESS ||
      whole(&uuid, device) != CUDA_SUCCESS)
    throw Error(cat("GPU ", ordinal, " does not say its uuid", visible_setting()), "nvidia-smi -L should list it.");
  if (slice == nullptr || slice(&part, device) != CUDA_SUCCESS || dashed(part) == dashed(uuid))
    return "GPU-" + dashed(uuid);
  return "MIG-" + dashed(part);
}

}  // namespace

int runtime::visible_devices() {
  if (!has_driver()) return 0;
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

std::vector<std::string> runtime::visible_uuids() {
  std::vector<std::string> uuids;
  for (int i = 0; i < visible_devices(); ++i) uuids.push_back(device_uuid(i));
  return uuids;
}

void check_device(int ordinal) {
  driver_library();
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
    cudaGetLastError();
    throw Error(cat("this machine shows no GPU", visible_setting()),
                "Ask for one (Slurm: --gpus-per-task=1; containers: --gpus all, --nv), or train on the CPU.");
  }
  check(status, "looking for GPUs");
  if (ordinal < 0 || ordinal >= count)
    throw Error(cat("GPU ", ordinal, " was asked for, and this process sees ", count, visible_setting()),
                "Start at most one rank per GPU on each machine, or ask for more GPUs.");
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal), "asking what the GPU is");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal), "asking what the GPU is");
  if (10 * major + minor < oldest_capability)
    throw Error(cat("GPU ", ordinal, " has compute capability ", major, '.', minor, "; ", oldest_capability / 10, '.',
                    oldest_capability % 10, " (A100) is the oldest that works"),
                "Choose another GPU, or train on the CPU.");
}

DeviceFacts device_facts(int ordinal) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, ordinal), "asking what the GPU is");
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for the GPU's memory");
  int runtime = 0, driver = 0;
  check(cudaRuntimeGetVersion(&runtime), "asking for CUDA's version");
  check(cudaDriverGetVersion(&driver), "asking for the driver's version");
  DeviceFacts facts;
  facts.name = properties.name;
  facts.uuid = device_uuid(ordinal);
  facts.compute_capability = 10 * properties.major + properties.minor;
  facts.multiprocessors = properties.multiProcessorCount;
  facts.memory_bytes = static_cast<std::int64_t>(total);
  facts.free_bytes = static_cast<std::int64_t>(free);
  facts.cuda_version = cat(version_text(runtime), " (driver ", version_text(driver), ")");
  return facts;
}

}  // namespace ringtrain::cuda

// The entry of libringtrain-cuda.so (device/libraries.h).
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
