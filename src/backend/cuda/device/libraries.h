// The libraries that the program opens at run time, when it asks for a GPU: those of a GPU machine, and this program's
// own part for GPUs. So the same executable starts on machines that have none of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"

namespace ringtrain {

struct NcclApi;

namespace cuda {

struct LibraryRequest {
  std::string file;                    // "libcudnn.so.9"
  std::vector<std::string> variables;  // such as CUDNN_HOME: lib64 and lib below it are searched
  std::string advice;                  // the hint of the error when the library is not found
  bool pip_has_it = true;              // false: NVIDIA's driver brings it, and no Python environment is searched
};

// Returns the folders nvidia/*/lib of the Python environments that VIRTUAL_ENV and CONDA_PREFIX name. If they have no
// such folder, python3 is asked for its own.
const std::vector<std::string>& python_library_folders();

// Opens a library once and keeps it open until the process ends. Returns null when the library is not found.
void* try_library(const LibraryRequest& request);
// Does the same, but throws Error that names the file and all folders that were searched.
void* open_library(const LibraryRequest& request);
// Finds a function of the library. Throws Error that names the library's file when the function is missing.
void* library_function(void* library, const char* name);
std::string library_file(void* library);  // the path at which it was found

// driver_library(), cudnn_library() and nccl_library() return the driver (libcuda.so.1), cuDNN and NCCL. They throw
// Error when the library is not found. has_driver() returns whether the driver can be opened. cudnn_library() also
// opens the libraries that cuDNN opens by name, if they are found: the runtime, the compiler and cuBLAS.
void* driver_library();
bool has_driver();
void* cudnn_library();
void* nccl_library();

// Everything that is compiled with CUDA's headers is a library of its own, libringtrain-cuda.so: the runtime device,
// its kernels, cuDNN's front end and the table of NCCL's functions. The program opens it when a GPU is there or is
// planned for. So the program can be built without CUDA, and a change of CUDA compiles only the library again.

// What the library gives to the program. The functions do what the functions of the same names below and in
// cluster/nccl_connection.h say.
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

// These functions open the library for GPUs, and call its function of the same name.

// Makes the device with this ordinal; CUDA_VISIBLE_DEVICES decides which GPUs have ordinals. Loads the driver and
// cuDNN, and the plans kept in the folder `plan_cache` ("" for none). Throws Error with advice when there is no driver,
// no such device or no cuDNN.
std::unique_ptr<Device> make_runtime_device(int ordinal, const std::string& plan_cache);
// Returns the number of GPUs that this process sees. The number is 0 without a driver.
int visible_devices();
// Returns the uuids of these GPUs in the order of their ordinals. A MIG slice has a uuid of its own. The call creates
// no CUDA context, so it takes no memory of a GPU.
std::vector<std::string> visible_uuids();
// Returns cuDNN's description of a real GPU, in the JSON that for_description() takes. Throws Error.
std::string describe_gpu(int ordinal);
// Runs cuDNN for a device that is not there, as the child process that plan_process.h describes. Returns the exit
// status.
int run_planner();

// The library's own functions, which it puts into CudaLibrary (runtime/discovery.cpp).
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

namespace cudnn_frontend {
// cuDNN's front end looks its functions up in this library. cudnn_library() sets it.
extern void* cudnn_dlhandle;
}  // namespace cudnn_frontend
