#include "backend/cuda/kernels/table.cuh"

namespace ringtrain::cuda {

const void* bf16_kernel(Kernel kernel) {
  return function<on_device::Bf16>(kernel);
}

}  // namespace ringtrain::cuda
