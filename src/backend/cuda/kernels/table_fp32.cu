#include "backend/cuda/kernels/table.cuh"

namespace ringtrain::cuda {

const void* fp32_kernel(Kernel kernel) {
  return function<float>(kernel);
}

}  // namespace ringtrain::cuda
