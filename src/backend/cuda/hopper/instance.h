// Instance describes one compiled kernel of the library, and says how to query it and how to launch it.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/hopper/interface.h"

// Lists every kernel of the library once as X(name, type of the kernel). The Makefile reads the names here and compiles
// instance.cu for each. The order has no meaning: Library::choose() compares the tiles.
#define RINGTRAIN_HOPPER_INSTANCES(X)                                                   \
  X(forward_bf16_128x128, ForwardSums<cutlass::bfloat16_t, 128, 128, 2, 6, 1>)          \
  X(forward_bf16_128x64, ForwardSums<cutlass::bfloat16_t, 128, 64, 1, 4, 2>)            \
  X(gradient_bf16_128x128, GradientSums<cutlass::bfloat16_t, 128, 128, 2, 6, 1>)        \
  X(gradient_bf16_128x64, GradientSums<cutlass::bfloat16_t, 128, 64, 1, 4, 2>)          \
  X(gradient_add_bf16_128x128, GradientAddSums<cutlass::bfloat16_t, 128, 128, 2, 6, 1>) \
  X(weight_gradient_bf16_128x128, WeightGradient<cutlass::bfloat16_t, 128, 128>)        \
  X(forward_fp16_128x128, ForwardSums<cutlass::half_t, 128, 128, 2, 6, 1>)              \
  X(forward_fp16_128x64, ForwardSums<cutlass::half_t, 128, 64, 1, 4, 2>)                \
  X(gradient_fp16_128x128, GradientSums<cutlass::half_t, 128, 128, 2, 6, 1>)            \
  X(gradient_fp16_128x64, GradientSums<cutlass::half_t, 128, 64, 1, 4, 2>)              \
  X(gradient_add_fp16_128x128, GradientAddSums<cutlass::half_t, 128, 128, 2, 6, 1>)     \
  X(weight_gradient_fp16_128x128, WeightGradient<cutlass::half_t, 128, 128>)

namespace ringtrain::cuda::hopper {

// Holds the addresses of partial results in the workspace; see workspace_of().
struct Partials {
  float *sum = nullptr, *sum_other = nullptr;  // [tiles of rows][columns rounded up to tiles]
  float* splits = nullptr;                     // [splits][k][r][r][c]
};

struct Instance {
  Description description;
  bool (*can_implement)(const Problem&);  // CUTLASS's own answer
  cudaError_t (*launch)(const Problem&, const Tensors&, const Partials&, cudaStream_t);
};

// Notes the driver's answer to a request for a tensor map: 0 (CUDA_SUCCESS), or an error.
void note_tensor_map(int result);

// Launches the kernel in clusters of `cluster` blocks in x. Raises the kernel's limit of dynamic shared memory first.
// Launches nothing and returns an error when the driver has refused one of the kernel's tensor maps.
cudaError_t launch_clusters(const void* kernel, dim3 grid, unsigned threads, int cluster, int shared_bytes,
                            void* params, cudaStream_t stream);

Description described(const char* name, Work work, Element type, int rows, int columns, int depth, int cluster,
                      unsigned threads, int shared_bytes);

}  // namespace ringtrain::cuda::hopper
