// The libraries of a GPU machine, opened when a GPU is asked for: one executable starts where there are none of them.
#pragma once

#include <string>
#include <vector>

namespace ringtrain::cuda {

struct LibraryRequest {
  std::string file;                    // "libcudnn.so.9"
  std::vector<std::string> variables;  // CUDNN_HOME, ...: the library may lie in lib64 or lib below them
  std::string advice;                  // when it is nowhere
};

// Where a library is looked for, in this order ("": the loader's own search, LD_LIBRARY_PATH and the system's folders):
// RINGTRAIN_CUDA_LIBRARIES (folders, separated by ':'), the request's variables, the loader, CUDA's folder at build
// time and the usual folders of drivers and toolkits; python_library_folders() at last.
std::vector<std::string> library_folders(const LibraryRequest& request);
// nvidia/*/lib of the Python environment: VIRTUAL_ENV, CONDA_PREFIX, or what python3 says of itself.
const std::vector<std::string>& python_library_folders();

// Opened once and kept for the life of the process. Null when it is nowhere.
void* try_library(const LibraryRequest& request);
// The same; throws Error that names the file and everything that was searched.
void* open_library(const LibraryRequest& request);
// Throws Error that names the library's file.
void* library_function(void* library, const char* name);
std::string library_file(void* library);  // where it was found

// The driver (libcuda.so.1), cuDNN (with the compiler and cuBLAS that it opens by name) and NCCL.
void* driver_library();
bool has_driver();
void* cudnn_library();
void* nccl_library();

}  // namespace ringtrain::cuda

namespace cudnn_frontend {
// Where cuDNN's front end looks its functions up; set by cudnn_library().
extern void* cudnn_dlhandle;
}  // namespace cudnn_frontend
