// Finds the instruction sets of this CPU. They decide which kernels run.
#pragma once

#include <string>

namespace ringtrain::cpu {

enum class Isa { baseline, avx2, avx512, avx512_bf16 };

// Returns the best instruction set of the CPU and the operating system, or a lower one if lower_instruction_level() was
// called. RINGTRAIN_ISA=baseline|avx2|avx512|avx512_bf16 in the environment chooses a lower one for this program's own
// kernels, for tests and comparisons. oneDNN does not obey this variable; it has ONEDNN_MAX_CPU_ISA. Throws Error if
// RINGTRAIN_ISA names an unknown set or one that this CPU lacks.
Isa best_isa();
const char* isa_name(Isa isa);  // such as "AVX-512"

// Returns a number for the instructions on which rounding depends: the set above, and whether oneDNN can multiply
// matrices with AMX. A larger number means more instructions. Throws the errors of best_isa().
int instruction_level();
std::string level_name(int level);  // "AVX-512 BF16 and AMX"
// From now on the process computes with no more than `level`, in its own kernels and in oneDNN. oneDNN keeps its first
// choice, so this function throws Error if oneDNN has computed before. If ONEDNN_MAX_CPU_ISA or DNNL_MAX_CPU_ISA is
// set, oneDNN obeys that variable instead.
void lower_instruction_level(int level);

}  // namespace ringtrain::cpu
