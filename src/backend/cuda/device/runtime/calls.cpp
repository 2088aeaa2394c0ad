// The functions of cuDNN, and the errors of CUDA and cuDNN (runtime.h).
#include <array>

#include "backend/cuda/device/libraries.h"
#include "backend/cuda/device/runtime/runtime.h"
#include "base/error.h"
#include "cuda_build_info.h"  // written by the Makefile

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

namespace {

double gibibytes(std::int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

std::string advice(cudaError_t status) {
  switch (status) {
    case cudaErrorInsufficientDriver:
    case cudaErrorCompatNotSupportedOnDevice:
      return cat("The driver of this machine is older than this program's ", RINGTRAIN_CUDA,
                 ": update it (nvidia-smi shows it), or build with an older CUDA.");
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorUnsupportedPtxVersion:
      return cat("This program has kernels for ", RINGTRAIN_CUDA,
                 "; build it with CUDA_ARCHITECTURES set to this GPU's compute capability.");
    case cudaErrorDevicesUnavailable:
      return "Another process has the GPU for itself (nvidia-smi shows it): choose another with CUDA_VISIBLE_DEVICES.";
    case cudaErrorMemoryAllocation:
      return "Lower batch.micro, or choose a GPU that nobody else uses.";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorAssert:
    case cudaErrorLaunchFailure:
      return "A kernel went wrong; it may be an earlier one. CUDA_LAUNCH_BLOCKING=1 with graphs off names it, and "
             "compute-sanitizer shows the line. The GPU is of no more use to this process.";
    case cudaErrorECCUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorNvlinkUncorrectable:
      return "The GPU itself is faulty: `dmesg` and `nvidia-smi -q` say more. Take it out of service.";
    case cudaErrorSystemDriverMismatch:
    case cudaErrorSystemNotReady:
      return "The driver is not ready: the machine wants a restart, or its fabric manager does.";
    default:
      break;
  }
  if (status >= cudaErrorStreamCaptureUnsupported && status <= cudaErrorCapturedEvent)
    return "Recording a graph failed; run without graphs, and report it.";
  return "";
}

}  // namespace

void throw_cuda(cudaError_t status, const std::string& doing, std::source_location where) {
  cudaGetLastError();  // clears the error, so that it is not reported twice
  throw Error(cat("GPU: ", doing, " failed: ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")"),
              advice(status), where);
}

void throw_out_of_memory(const std::string& what, std::int64_t bytes, std::source_location where) {
  cudaGetLastError();
  std::size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  cudaGetLastError();
  throw Error(
      cat("the GPU has no memory left for ", what, ": ", gibibytes(bytes), " GiB wanted (", bytes, " bytes), ",
          gibibytes(static_cast<std::int64_t>(free)), " of ", gibibytes(static_cast<std::int64_t>(total)), " GiB free"),
      "Lower batch.micro (0 takes the largest that fits), use 16-bit precision, or end the other "
      "programs on this GPU (nvidia-smi lists them).",
      where);
}

std::string cudnn_reason(cudnnStatus_t status) {
  std::array<char, 512> message{};
  cudnn().get_last_error_string(message.data(), message.size());
  std::string text = cudnn().get_error_string(status);
  if (message[0] != '\0') text += cat(": ", message.data());
  return text;
}

void throw_cudnn(cudnnStatus_t status, const std::string& doing, std::source_location where) {
  const char* hint = "";
  if (status == CUDNN_STATUS_NOT_INITIALIZED || status == CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED ||
      status == CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH)
    hint =
        "Files of two versions of cuDNN are mixed, or some are missing: set CUDNN_HOME (or RINGTRAIN_CUDA_LIBRARIES) "
        "to one complete cuDNN 9.";
  throw Error(cat("cuDNN: ", doing, " failed: ", cudnn_reason(status)), hint, where);
}

}  // namespace ringtrain::cuda
