// Cudnn holds the functions of cuDNN that the program calls directly: handles, errors, and recurrent layers. NVIDIA's
// front end calls cuDNN's graph API (dnn/plans.cpp).
//
// The program is not linked with cuDNN, so that it starts on machines without it. cudnn() opens the library
// (dnn/libraries.h) and looks up each function by name. To call another function of cuDNN, add a member here and a line
// to cudnn.cpp.
#pragma once

#include <cudnn.h>

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

}  // namespace ringtrain::cuda
