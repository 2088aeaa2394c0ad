#include "run/library_versions.h"

#include <hdf5.h>

#include <nlohmann/json.hpp>
#include <oneapi/dnnl/dnnl.hpp>

#include "backend/cuda/device/libraries.h"
#include "base/error.h"
#include "base/version.h"
#include "build_info.h"  // written by the Makefile
#include "cluster/launcher.h"

namespace ringtrain {
namespace {

std::string hdf5_library() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return cat(major, '.', minor, '.', release);
}

std::string onednn_library() {
  const dnnl_version_t& version = *dnnl_version();
  return cat(version.major, '.', version.minor, '.', version.patch);
}

}  // namespace

std::map<std::string, std::string> library_versions() {
  return {{"MPI", mpi_library()},
          {"HDF5", hdf5_library()},
          {"oneDNN", onednn_library()},
          {"yaml-cpp", RINGTRAIN_YAML_CPP_VERSION},
          {"nlohmann-json",
           cat(NLOHMANN_JSON_VERSION_MAJOR, '.', NLOHMANN_JSON_VERSION_MINOR, '.', NLOHMANN_JSON_VERSION_PATCH)}};
}

std::string version_text() {
  std::string cuda;
  if (const cuda::CudaLibrary* library = cuda::find_cuda_library(&cuda); library != nullptr) cuda = library->versions;
  std::string text = cat("ringtrain ", build_commit(), "\ncompiler: ", build_compiler(), "\nflags: ", build_flags(),
                         "\nCPU kernels: ", build_instruction_sets(), "\nGPU kernels: ", cuda, '\n');
  for (const auto& [library, version] : library_versions()) text += cat(library, ": ", version, '\n');
  return text;
}

}  // namespace ringtrain
