// Formulas that are written once and used by CPU kernels, CUDA kernels and tests.
#pragma once

#if defined(__CUDACC__)
#define RINGTRAIN_HD __host__ __device__ __forceinline__
#else
// Always inlined: kernel files are compiled once per instruction set, and an out-of-line copy with AVX-512 in it could
// be the one that the linker keeps for everybody.
#define RINGTRAIN_HD inline __attribute__((always_inline))
#endif
