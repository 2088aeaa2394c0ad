#include "backend/cuda/device/libraries.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

#include "base/child_process.h"
#include "base/error.h"
#include "base/log.h"
#include "base/system_limits.h"
#include "base/text.h"
#include "interface.h"  // written by the Makefile

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace ringtrain::cuda {
namespace {

void add_matches(const std::string& pattern, std::vector<std::string>& paths) {
  glob_t found{};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
    for (std::size_t i = 0; i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  globfree(&found);
}

void* open_in(const std::string& folder, const std::string& file) {
  if (folder.empty()) return dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  const std::filesystem::path path = std::filesystem::path(folder) / file;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return nullptr;
  return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
}

// Returns the folders in which a library is searched, in this order. RINGTRAIN_CUDA_LIBRARIES comes first (folders
// separated by ':'). The request's variables follow. Then comes "", which means the loader's own search: it covers
// LD_LIBRARY_PATH and the system's folders. CUDA's folder at build time follows for a request that names CUDA_HOME. The
// usual folders of drivers and toolkits come last. python_library_folders() is searched after all of these, if pip has
// the library.
std::vector<std::string> library_folders(const LibraryRequest& request) {
  std::vector<std::string> folders = split(environment_text("RINGTRAIN_CUDA_LIBRARIES"), ':');
  std::erase(folders, "");
  for (const std::string& variable : request.variables)
    if (const std::string home = environment_text(variable.c_str()); !home.empty())
      for (const char* lib : {"/lib64", "/lib"}) folders.push_back(home + lib);
  folders.emplace_back();
  if (std::ranges::count(request.variables, "CUDA_HOME") != 0)
    if (const CudaLibrary* library = find_cuda_library(); library != nullptr)
      folders.push_back(cat(library->cuda_home, "/lib64"));
  for (const char* usual : {"/usr/local/cuda/lib64", "/usr/local/nvidia/lib64", "/usr/lib64", "/usr/lib64/nvidia",
                            "/usr/lib/wsl/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"})
    folders.emplace_back(usual);
  return folders;
}

// Calls `use` with each folder until it returns a library. Python is started only when the other folders have nothing.
// It takes longer than the rest of a small run's start, so that no rank of a machine without a GPU may start it.
void* first_of(const LibraryRequest& request, const std::function<void*(const std::string&)>& use) {
  for (const std::string& folder : library_folders(request))
    if (void* library = use(folder); library != nullptr) return library;
  if (!request.pip_has_it) return nullptr;
  for (const std::string& folder : python_library_folders())
    if (void* library = use(folder); library != nullptr) return library;
  return nullptr;
}

const LibraryRequest& driver_request() {
  static const LibraryRequest request = {"libcuda.so.1",
                                         {},
                                         "A GPU machine has it from NVIDIA's driver (nvidia-smi shows it; in a "
                                         "container: --gpus all, --nv). Without a GPU train on the CPU.",
                                         false};
  return request;
}

}  // namespace

const std::vector<std::string>& python_library_folders() {
  static const std::vector<std::string> folders = [] {  // done once, because starting Python takes a while
    std::vector<std::string> found;
    for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"})
      if (const std::string home = environment_text(variable); !home.empty())
        add_matches(home + "/lib/python3*/site-packages/nvidia/*/lib", found);
    if (!found.empty()) return found;
    const std::optional<std::string> output = output_of(
        "exec python3 -c 'import site, sysconfig\n"
        "for p in [sysconfig.get_path(\"purelib\"), site.getusersitepackages(), *site.getsitepackages()]: print(p)' "
        "2> /dev/null < /dev/null");
    if (!output) {
      log_warning("python3, which knows where pip installs CUDA's libraries, cannot be started: ", limits_of_threads());
      return found;
    }
    for (const std::string& folder : split(*output, '\n'))
      if (!folder.empty()) add_matches(folder + "/nvidia/*/lib", found);
    return found;
  }();
  return folders;
}

void* try_library(const LibraryRequest& request) {
  static std::map<std::string, void*> opened;
  static std::mutex searching;  // several threads build plans
  const std::lock_guard lock(searching);
  if (const auto known = opened.find(request.file); known != opened.end()) return known->second;
  void* library = first_of(request, [&](const std::string& folder) { return open_in(folder, request.file); });
  if (library != nullptr) opened[request.file] = library;
  return library;
}

void* open_library(const LibraryRequest& request) {
  if (void* library = try_library(request); library != nullptr) return library;
  std::string searched, refused;
  first_of(request, [&](const std::string& folder) -> void* {
    searched += cat(searched.empty() ? "" : ", ", folder.empty() ? "the loader's folders and LD_LIBRARY_PATH" : folder);
    dlerror();
    const bool opened = open_in(folder, request.file) != nullptr;
    const char* why = dlerror();
    if (!opened && why != nullptr && !folder.empty() && refused.empty()) refused = why;
    return nullptr;
  });
  // When a file of a named folder exists but does not open, the error gives that reason. The list of searched folders
  // would hide it. In the loader's own folders, a file that does not open counts as not found.
  if (!refused.empty()) throw Error(cat(request.file, " cannot be opened: ", refused), request.advice);
  throw Error(cat(request.file, " was not found; searched: ", searched), request.advice);
}

std::string library_file(void* library) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "?";
  return map->l_name;
}

void* library_function(void* library, const char* name) {
  void* function = dlsym(library, name);
  if (function == nullptr)
    throw Error(cat(library_file(library), " has no function ", name),
                "The library is too old, or it is another library with this name.");
  return function;
}

void* driver_library() {
  return open_library(driver_request());
}

bool has_driver() {
  return try_library(driver_request()) != nullptr;
}

void* cudnn_library() {
  void* library = open_library({"libcudnn.so.9",
                                {"CUDNN_HOME", "CUDA_HOME"},
                                "Set CUDNN_HOME to cuDNN 9 (module load cudnn), add its folder to "
                                "RINGTRAIN_CUDA_LIBRARIES, or activate a Python "
                                "environment that has the package nvidia-cudnn."});
  if (cudnn_frontend::cudnn_dlhandle == library) return library;
  // Recurrent layers call cuBLAS from several streams. With workspace buffers of one size cuBLAS takes the same kernels
  // each time. With its default of two sizes it may take other kernels when the large buffers are in use. The total
  // size here is that of Hopper's default.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  // cuDNN and its front end open these libraries by their bare names, and find those that are open already. cuDNN
  // itself reports a missing one.
  using VersionFunction = std::size_t (*)();
  const auto version = reinterpret_cast<VersionFunction>(library_function(library, "cudnnGetCudartVersion"))();
  const std::string major = std::to_string(version / 1000);
  for (const char* name : {"libcudart.so.", "libnvrtc.so.", "libcublasLt.so.", "libcublas.so."}) {
    void* other = try_library({name + major, {"CUDA_HOME"}, ""});
    // Without this variable the front end takes the runtime of CUDA 12 when it finds one, even when cuDNN is for
    // another CUDA.
    if (other != nullptr && std::string(name) == "libcudart.so.")
      setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", library_file(other).c_str(), 0);
    if (other == nullptr || std::string(name) != "libnvrtc.so.") continue;
    // The compiler opens its built-in functions by a name that contains its minor version.
    std::vector<std::string> builtins;
    add_matches(std::filesystem::path(library_file(other)).parent_path() / "libnvrtc-builtins.so.*", builtins);
    for (const std::string& file : builtins) dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  cudnn_frontend::cudnn_dlhandle = library;
  return library;
}

void* nccl_library() {
  // NCCL opens this library by name, and it may be only in the driver's folder.
  try_library({"libnvidia-ml.so.1", {}, "", false});
  return open_library(
      {"libnccl.so.2",
       {"NCCL_HOME", "CUDA_HOME"},
       "Set NCCL_HOME to NCCL's folder (module load nccl), add its lib folder to RINGTRAIN_CUDA_LIBRARIES, "
       "activate a Python environment that has the package nvidia-nccl, or set communication.library: mpi."});
}

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
