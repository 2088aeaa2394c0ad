#include "backend/cuda/hopper/convolution.cuh"

namespace ringtrain::cuda::hopper {

Instance gradient_add_fp16_128x128() {
  return GradientAddSums<cutlass::half_t, 128, 128, 2, 6, 1>::instance("gradient_add_fp16_128x128");
}

}  // namespace ringtrain::cuda::hopper
