// Stands in for the runtime device in a program that was built without CUDA.
#include "backend/cuda/device.h"
#include "base/error.h"

namespace ringtrain::cuda {

std::unique_ptr<Device> make_runtime_device(int, const std::string&) {
  throw Error(
      "this ringtrain was built without CUDA",
      "Build it where nvcc, cuDNN and NCCL are found (make CUDA=1 names what is missing), or train on the CPU.");
}

int visible_devices() {
  return 0;
}
std::vector<std::string> visible_uuids() {
  return {};
}

}  // namespace ringtrain::cuda
