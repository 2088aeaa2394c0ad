// Defines CUDA's keywords and functions for kernels that are compiled as C++ and run on the CPU. Blocks run one after
// another. The threads of a block are fibers that switch only at barriers and shuffles, so that a missing barrier
// changes results. Include this file before any .cuh file.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
// Kernels use this macro instead of __shared__. Shared memory that a block has not written holds NaNs.
#define RINGTRAIN_SHARED(type, name, ...)                \
  static thread_local type name __VA_ARGS__;             \
  static thread_local std::uint64_t name##_of_block = 0; \
  ::ringtrain::cuda::emulated::poison_once_per_block(name##_of_block, static_cast<void*>(&name), sizeof name)

namespace ringtrain::cuda::emulated {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
inline constinit thread_local Index threadIdx, blockIdx, blockDim, gridDim;

// Waits until all threads of the block are here.
void block_barrier();
// Waits until all threads of the warp are here. Returns the value that lane (own ^ distance) gave.
std::uint64_t exchange(std::uint64_t value, int distance);

// Fills a shared variable with 0xff (NaN in every type) when the first thread of a block reaches the declaration. A
// kernel that reads the values of an earlier block then computes NaNs. `of_block` belongs to the variable and begins
// with 0.
void poison_once_per_block(std::uint64_t& of_block, void* memory, std::size_t bytes);

inline void __syncthreads() {
  block_barrier();
}
inline void __threadfence() {}

template <class V>
V __shfl_xor_sync(unsigned, V value, int distance) {
  static_assert(sizeof(V) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(V));
  bits = exchange(bits, distance);
  std::memcpy(&value, &bits, sizeof(V));
  return value;
}

inline unsigned atomicAdd(unsigned* to, unsigned value) {
  const unsigned before = *to;
  *to += value;
  return before;
}

// Runs `body` once per thread of every block. With `barriers`, the kernel may wait, and each thread is a fiber. Without
// it, the threads run in a plain loop. With `backwards`, blocks and threads run from the last to the first. Throws
// Error where a GPU would hang, which is when threads wait at different barriers or for threads that have ended.
void run_grid(const Index& grid, unsigned threads, bool barriers, bool backwards, const std::function<void()>& body);

}  // namespace ringtrain::cuda::emulated
