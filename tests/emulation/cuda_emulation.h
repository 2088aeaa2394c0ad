// CUDA's words for kernels that are compiled as C++ and run on the CPU: blocks in a loop; the threads of a block are
// fibers that switch only at barriers and shuffles, so that a missing barrier shows. Include it before any .cuh file.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
// In place of __shared__, which kernels do not write themselves: what a block has not written holds NaNs.
#define RINGTRAIN_SHARED(type, name, ...)                \
  static thread_local type name __VA_ARGS__;             \
  static thread_local std::uint64_t name##_of_block = 0; \
  ::ringtrain::cuda::emulated::poison_once_per_block(name##_of_block, static_cast<void*>(&name), sizeof name)

namespace ringtrain::cuda::emulated {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
inline constinit thread_local Index threadIdx, blockIdx, blockDim, gridDim;

// Until all threads of the block are here.
void block_barrier();
// Until all threads of the warp are here: what lane (own ^ distance) gave.
std::uint64_t exchange(std::uint64_t value, int distance);

// Fills a block's memory with 0xff (NaN in every type) when the first of its threads comes to the declaration, so that
// nobody reads what an earlier block left. `of_block`: of the variable, 0 at first.
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

// Runs `body` once per thread of every block. `barriers`: the kernel may wait (each thread is a fiber); without it
// threads are a plain loop. `backwards`: blocks and threads from the last to the first. Throws Error where a GPU would
// hang: threads that wait at different barriers, or for threads that have ended.
void run_grid(const Index& grid, unsigned threads, bool barriers, bool backwards, const std::function<void()>& body);

}  // namespace ringtrain::cuda::emulated
