#include "backend/cuda/kernels/table.cuh"

namespace ringtrain::cuda {

const void* fp16_kernel(Kernel kernel) {
  return function<on_device::Fp16>(kernel);
}

}  // namespace ringtrain::cuda
