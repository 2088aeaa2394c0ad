#include "backend/cuda/device/runtime/cudnn.h"

#include "backend/cuda/dnn/libraries.h"

namespace ringtrain::cuda {
namespace {

template <class Function>
void find(Function& function, const char* name) {
  function = reinterpret_cast<Function>(library_function(cudnn_library(), name));
}

}  // namespace

const Cudnn& cudnn() {
  static const Cudnn functions = [] {
    Cudnn f;
    find(f.get_version, "cudnnGetVersion");
    find(f.get_error_string, "cudnnGetErrorString");
    find(f.get_last_error_string, "cudnnGetLastErrorString");
    find(f.create, "cudnnCreate");
    find(f.destroy, "cudnnDestroy");
    find(f.set_stream, "cudnnSetStream");
    find(f.create_tensor_descriptor, "cudnnCreateTensorDescriptor");
    find(f.destroy_tensor_descriptor, "cudnnDestroyTensorDescriptor");
    find(f.set_tensor_descriptor, "cudnnSetTensorNdDescriptor");
    find(f.get_tensor_descriptor, "cudnnGetTensorNdDescriptor");
    find(f.create_rnn_descriptor, "cudnnCreateRNNDescriptor");
    find(f.destroy_rnn_descriptor, "cudnnDestroyRNNDescriptor");
    find(f.set_rnn_descriptor, "cudnnSetRNNDescriptor_v8");
    find(f.create_rnn_data_descriptor, "cudnnCreateRNNDataDescriptor");
    find(f.destroy_rnn_data_descriptor, "cudnnDestroyRNNDataDescriptor");
    find(f.set_rnn_data_descriptor, "cudnnSetRNNDataDescriptor");
    find(f.build_rnn_dynamic, "cudnnBuildRNNDynamic");
    find(f.get_rnn_weight_space_size, "cudnnGetRNNWeightSpaceSize");
    find(f.get_rnn_temp_space_sizes, "cudnnGetRNNTempSpaceSizes");
    find(f.get_rnn_weight_params, "cudnnGetRNNWeightParams");
    find(f.rnn_forward, "cudnnRNNForward");
    find(f.rnn_backward_data, "cudnnRNNBackwardData_v8");
    find(f.rnn_backward_weights, "cudnnRNNBackwardWeights_v8");
    return f;
  }();
  return functions;
}

}  // namespace ringtrain::cuda
