// Opens the libraries of a GPU machine at run time, when the program asks for a GPU. So the same executable starts on
// machines that have none of them.
#pragma once

#include <string>
#include <vector>

namespace ringtrain::cuda {

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

}  // namespace ringtrain::cuda

namespace cudnn_frontend {
// cuDNN's front end looks its functions up in this library. cudnn_library() sets it.
extern void* cudnn_dlhandle;
}  // namespace cudnn_frontend
