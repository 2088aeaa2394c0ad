// Everything that is compiled with CUDA's headers is a library of its own, libringtrain-cuda.so: the runtime device,
// its kernels, cuDNN's front end and the table of NCCL's functions. The program opens it when a GPU is there or is
// planned for. So the program can be built without CUDA, and a change of CUDA compiles only the library again.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"

namespace ringtrain {

struct NcclApi;

namespace cuda {

// What the library gives to the program. The functions do what the functions of the same names in device.h,
// described.h, dnn/plans.h and cluster/nccl_library.h say.
struct CudaLibrary {
  const char* interface;  // names the headers of its build; it must equal that of the program
  const char* versions;   // "CUDA 13.0, cuDNN 9.19.0 (front end 1.32), NCCL 2.28.9, sm_90"
  const char* cuda_home;  // CUDA's folder at build time
  std::unique_ptr<Device> (*make_runtime_device)(int ordinal, const std::string& plan_cache);
  int (*visible_devices)();
  std::vector<std::string> (*visible_uuids)();
  std::string (*describe_gpu)(int ordinal);
  int (*run_planner)();
  const NcclApi& (*nccl_api)();
};

inline constexpr const char* cuda_library_file = "libringtrain-cuda.so";
inline constexpr const char* cuda_library_symbol = "ringtrain_cuda_library";

// Opens the library once. It lies next to the executable; that of tests and benchmarks lies in bin/. Returns null when
// there is none, when it does not open, or when it belongs to another build; `why` is then the reason.
const CudaLibrary* find_cuda_library(std::string* why = nullptr);
// Does the same, but throws Error with the reason and advice.
const CudaLibrary& cuda_library();

// The library's own functions, which it puts into CudaLibrary (runtime/discovery.cpp). The program has functions of the
// same names in ringtrain::cuda, which open the library first.
namespace runtime {

std::unique_ptr<Device> make_device(int ordinal, const std::string& plan_cache);
int visible_devices();
std::vector<std::string> visible_uuids();
std::string describe_gpu(int ordinal);
int run_planner();
const NcclApi& nccl_api();

}  // namespace runtime

}  // namespace cuda
}  // namespace ringtrain
