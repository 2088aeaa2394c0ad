// What was built, from what and how: for `--version`, run.json and checkpoints.
#pragma once

#include <map>
#include <string>

namespace ringtrain {

std::string build_commit();            // `git describe --always --dirty`; "unknown" outside git
std::string build_compiler();          // "GCC 12.2.0"
std::string build_flags();             // the compiler's command line, without include paths
std::string build_instruction_sets();  // of the CPU kernels: "baseline avx2 avx512 avx512_bf16"
std::string build_cuda();              // "CUDA 13.0, cuDNN 9.19.0 (front end 1.32), NCCL 2.28.9, sm_80"; "" without
std::string build_cuda_home();         // where CUDA was then; "" without

// Library -> version as found at run time: "MPI", "HDF5", "oneDNN", "yaml-cpp", "nlohmann-json". This and
// version_text() are defined apart from the rest (library_versions.cpp), so that a program without MPI and oneDNN can
// use the rest.
std::map<std::string, std::string> library_versions();

std::string version_text();  // of `ringtrain --version`

}  // namespace ringtrain
