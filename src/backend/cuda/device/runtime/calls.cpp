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
#define RINGTRAIN_FIND(member, function) find(f.member, #function);
    RINGTRAIN_CUDNN_FUNCTIONS(RINGTRAIN_FIND)
#undef RINGTRAIN_FIND
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
