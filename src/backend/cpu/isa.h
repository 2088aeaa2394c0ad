// Finds the instruction sets of this CPU. They decide which kernels run.
#pragma once

#include <string>

namespace ringtrain::cpu {

enum class Isa { baseline, avx2, avx512, avx512_bf16 };

// The best that CPU and operating system offer; RINGTRAIN_ISA=baseline|avx2|avx512|avx512_bf16 in the environment
// lowers it (tests, comparisons). Throws Error when it names an unknown set or one that this CPU lacks.
Isa best_isa();
const char* isa_name(Isa isa);  // "AVX-512"

}  // namespace ringtrain::cpu
