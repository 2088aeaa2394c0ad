#include "backend/cuda/hopper/convolution.cuh"

namespace ringtrain::cuda::hopper {

Instance forward_fp16_128x64() {
  return ForwardSums<cutlass::half_t, 128, 64, 1, 4, 2>::instance("forward_fp16_128x64");
}

}  // namespace ringtrain::cuda::hopper
