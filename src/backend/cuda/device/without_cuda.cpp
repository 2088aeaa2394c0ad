// Replaces the runtime device in a program that was built without CUDA.
#include <cstdio>

#include "backend/cuda/device/device.h"
#include "backend/cuda/device/planner.h"
#include "backend/cuda/dnn/plans.h"
#include "base/error.h"

namespace ringtrain::cuda {

namespace {
const char* what = "this ringtrain was built without CUDA";
const char* advice = "Build it where nvcc, cuDNN and NCCL are found (make CUDA=1 names what is missing)";
}  // namespace

std::unique_ptr<Device> make_runtime_device(int, const std::string&) {
  throw Error(what, std::string(advice) + ", or train on the CPU.");
}

int run_planner() {
  std::printf("error\t%s\t%s.\n", what, advice);
  return 1;
}

std::string describe_gpu(int) {
  throw Error(what, std::string(advice) + ".");
}

int visible_devices() {
  return 0;
}
std::vector<std::string> visible_uuids() {
  return {};
}

}  // namespace ringtrain::cuda
