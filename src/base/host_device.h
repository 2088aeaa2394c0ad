// A macro for formulas that are written once and used by CPU kernels, CUDA kernels and tests.
#pragma once

#if defined(__CUDACC__)
#define RINGTRAIN_HD __host__ __device__ __forceinline__
#else
// The functions are always inlined, because kernel files are compiled once per instruction set. Otherwise the linker
// might keep an out-of-line copy with AVX-512 for the whole program.
#define RINGTRAIN_HD inline __attribute__((always_inline))
#endif
