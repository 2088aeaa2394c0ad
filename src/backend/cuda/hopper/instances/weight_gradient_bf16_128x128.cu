#include "backend/cuda/hopper/weight_gradient.cuh"

namespace ringtrain::cuda::hopper {

Instance weight_gradient_bf16_128x128() {
  return WeightGradient<cutlass::bfloat16_t, 128, 128>::instance("weight_gradient_bf16_128x128");
}

}  // namespace ringtrain::cuda::hopper
