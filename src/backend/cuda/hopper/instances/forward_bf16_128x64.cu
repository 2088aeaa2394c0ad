#include "backend/cuda/hopper/convolution.cuh"

namespace ringtrain::cuda::hopper {

Instance forward_bf16_128x64() {
  return ForwardSums<cutlass::bfloat16_t, 128, 64, 1, 4, 2>::instance("forward_bf16_128x64");
}

}  // namespace ringtrain::cuda::hopper
