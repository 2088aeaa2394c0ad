// Finds the instruction sets of this CPU. They decide which kernels run.
#pragma once

#include <string>

namespace ringtrain::cpu {

enum class Isa { baseline, avx2, avx512, avx512_bf16 };

// Returns the best instruction set of the CPU and the operating system. RINGTRAIN_ISA=baseline|avx2|avx512|avx512_bf16
// in the environment chooses a lower one, for tests and comparisons. Throws Error if the variable names an unknown set
// or one that this CPU lacks.
Isa best_isa();
const char* isa_name(Isa isa);  // such as "AVX-512"

}  // namespace ringtrain::cpu
