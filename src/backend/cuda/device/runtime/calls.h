// The functions of cuDNN, and the check of what CUDA and cuDNN answer.
//
// Cudnn holds the functions of cuDNN that the program calls directly: handles, errors, and recurrent layers. NVIDIA's
// front end calls cuDNN's graph API (dnn/plans.cpp).
//
// The program is not linked with cuDNN, so that it starts on machines without it. cudnn() opens the library
// (dnn/libraries.h) and looks up each function by name. To call another function of cuDNN, add a member here and a line
// to calls.cpp.
#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstdint>
#include <source_location>
#include <string>

namespace ringtrain::cuda {

struct Cudnn {
  decltype(&cudnnGetVersion) get_version;
  decltype(&cudnnGetErrorString) get_error_string;
  decltype(&cudnnGetLastErrorString) get_last_error_string;
  decltype(&cudnnCreate) create;
  decltype(&cudnnDestroy) destroy;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnCreateTensorDescriptor) create_tensor_descriptor;
  decltype(&cudnnDestroyTensorDescriptor) destroy_tensor_descriptor;
  decltype(&cudnnSetTensorNdDescriptor) set_tensor_descriptor;
  decltype(&cudnnGetTensorNdDescriptor) get_tensor_descriptor;
  decltype(&cudnnCreateRNNDescriptor) create_rnn_descriptor;
  decltype(&cudnnDestroyRNNDescriptor) destroy_rnn_descriptor;
  decltype(&cudnnSetRNNDescriptor_v8) set_rnn_descriptor;
  decltype(&cudnnCreateRNNDataDescriptor) create_rnn_data_descriptor;
  decltype(&cudnnDestroyRNNDataDescriptor) destroy_rnn_data_descriptor;
  decltype(&cudnnSetRNNDataDescriptor) set_rnn_data_descriptor;
  decltype(&cudnnBuildRNNDynamic) build_rnn_dynamic;
  decltype(&cudnnGetRNNWeightSpaceSize) get_rnn_weight_space_size;
  decltype(&cudnnGetRNNTempSpaceSizes) get_rnn_temp_space_sizes;
  decltype(&cudnnGetRNNWeightParams) get_rnn_weight_params;
  decltype(&cudnnRNNForward) rnn_forward;
  decltype(&cudnnRNNBackwardData_v8) rnn_backward_data;
  decltype(&cudnnRNNBackwardWeights_v8) rnn_backward_weights;
};

// Opens cuDNN at the first call. Throws Error when there is no cuDNN.
const Cudnn& cudnn();

// Turns errors of CUDA and cuDNN into Error with advice.
//
// The results of most calls to CUDA's runtime and to cuDNN in this folder go to check(). If the call failed, check()
// throws an Error that says what the program was doing, what the library answered, and where in the code it was. Some
// statuses get advice for the user, such as a driver that is too old. Destructors do not use check(), because they must
// not throw. The caller handles failures that it expects, such as an operation that cuDNN refuses.
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
