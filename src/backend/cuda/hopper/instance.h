// Instance describes one compiled kernel of the library, and says how to query it and how to launch it.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/hopper/interface.h"
#include "backend/cuda/hopper/tiling.h"

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
