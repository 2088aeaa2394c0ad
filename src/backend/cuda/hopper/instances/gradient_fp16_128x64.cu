#include "backend/cuda/hopper/convolution.cuh"

namespace ringtrain::cuda::hopper {

Instance gradient_fp16_128x64() {
  return GradientSums<cutlass::half_t, 128, 64, 1, 4, 2>::instance("gradient_fp16_128x64");
}

}  // namespace ringtrain::cuda::hopper
