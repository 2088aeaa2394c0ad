// Turns errors of CUDA and cuDNN into Error with advice.
//
// The results of most calls to CUDA's runtime and to cuDNN in this folder go to check(). If the call failed, check()
// throws an Error that says what the program was doing, what the library answered, and where in the code it was. Some
// statuses get advice for the user, such as a driver that is too old. Destructors do not use check(), because they must
// not throw. The caller handles failures that it expects, such as an operation that cuDNN refuses.
#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstdint>
#include <source_location>
#include <string>

namespace ringtrain::cuda {

[[noreturn]] void throw_cuda(cudaError_t status, const std::string& doing, std::source_location where);
[[noreturn]] void throw_out_of_memory(const std::string& what, std::int64_t bytes, std::source_location where);
[[noreturn]] void throw_cudnn(cudnnStatus_t status, const std::string& doing, std::source_location where);
std::string cudnn_reason(cudnnStatus_t status);  // cuDNN's text for the status and its last message

// `doing` says in the program's terms what it was doing, such as "copying to the GPU".
inline void check(cudaError_t status, const char* doing, std::source_location where = std::source_location::current()) {
  if (status != cudaSuccess) throw_cuda(status, doing, where);
}
inline void check(cudnnStatus_t status, const char* doing,
                  std::source_location where = std::source_location::current()) {
  if (status != CUDNN_STATUS_SUCCESS) throw_cudnn(status, doing, where);
}

}  // namespace ringtrain::cuda
