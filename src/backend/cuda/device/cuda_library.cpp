#include "backend/cuda/device/cuda_library.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <filesystem>

#include "backend/cuda/device/described.h"
#include "backend/cuda/dnn/libraries.h"
#include "backend/cuda/dnn/plans.h"
#include "base/child_process.h"
#include "base/error.h"
#include "interface.h"  // written by the Makefile

namespace ringtrain::cuda {
namespace {

struct OpenedLibrary {
  const CudaLibrary* library = nullptr;
  std::string why;
};

OpenedLibrary open_cuda_library() {
  const std::filesystem::path folder = std::filesystem::path(own_executable()).parent_path();
  std::error_code ignored;
  std::filesystem::path path = folder / cuda_library_file;
  if (!std::filesystem::exists(path, ignored)) path = folder / "../../bin" / cuda_library_file;
  if (!std::filesystem::exists(path, ignored)) return {nullptr, "this ringtrain was built without CUDA"};
  void* const opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) return {nullptr, cat("the part of ringtrain for GPUs does not open: ", dlerror())};
  const auto* library = static_cast<const CudaLibrary*>(dlsym(opened, cuda_library_symbol));
  if (library == nullptr || std::strcmp(library->interface, RINGTRAIN_INTERFACE) != 0)
    return {nullptr, cat(path.string(), " belongs to another build than this ringtrain")};
  return {library, ""};
}

const OpenedLibrary& opened_library() {
  static const OpenedLibrary opened = open_cuda_library();
  return opened;
}

const char* advice = "`make cuda` builds bin/libringtrain-cuda.so where nvcc, cuDNN and NCCL are found";

}  // namespace

const CudaLibrary* find_cuda_library(std::string* why) {
  if (why != nullptr) *why = opened_library().why;
  return opened_library().library;
}

const CudaLibrary& cuda_library() {
  if (opened_library().library == nullptr) throw Error(opened_library().why, cat(advice, ". Or train on the CPU."));
  return *opened_library().library;
}

std::unique_ptr<Device> make_runtime_device(int ordinal, const std::string& plan_cache) {
  return cuda_library().make_runtime_device(ordinal, plan_cache);
}

int visible_devices() {
  if (!has_driver()) return 0;
  const CudaLibrary* const library = find_cuda_library();
  return library == nullptr ? 0 : library->visible_devices();
}

std::vector<std::string> visible_uuids() {
  if (!has_driver()) return {};
  const CudaLibrary* const library = find_cuda_library();
  return library == nullptr ? std::vector<std::string>() : library->visible_uuids();
}

std::string describe_gpu(int ordinal) {
  return cuda_library().describe_gpu(ordinal);
}

int run_planner() {
  std::string why;
  if (const CudaLibrary* library = find_cuda_library(&why); library != nullptr) return library->run_planner();
  std::printf("error\t%s\t%s.\n", why.c_str(), advice);
  return 1;
}

}  // namespace ringtrain::cuda
