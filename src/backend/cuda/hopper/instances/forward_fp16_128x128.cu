#include "backend/cuda/hopper/convolution.cuh"

namespace ringtrain::cuda::hopper {

Instance forward_fp16_128x128() {
  return ForwardSums<cutlass::half_t, 128, 128, 2, 6, 1>::instance("forward_fp16_128x128");
}

}  // namespace ringtrain::cuda::hopper
