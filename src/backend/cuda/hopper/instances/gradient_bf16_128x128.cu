#include "backend/cuda/hopper/convolution.cuh"

namespace ringtrain::cuda::hopper {

Instance gradient_bf16_128x128() {
  return GradientSums<cutlass::bfloat16_t, 128, 128, 2, 6, 1>::instance("gradient_bf16_128x128");
}

}  // namespace ringtrain::cuda::hopper
