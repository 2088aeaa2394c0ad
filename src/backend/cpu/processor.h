// What this process takes of the processor: the instruction set, which decides which kernels run, and the threads.
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

// OpenMP may give a parallel region fewer threads than it asks for. The program's loops and those in oneDNN divide
// their work among the threads that they ask for, so with fewer threads a part of the work would be left out.

// Switches off what would let OpenMP choose smaller teams for this thread's parallel regions. Then enters a region with
// `threads` threads and counts them. Throws Error that names the variable in the way when there are fewer, or the limit
// of the system if a thread cannot be started.
void expect_threads(int threads);

// Undoes what OMP_PROC_BIND, OMP_PLACES and GOMP_CPU_AFFINITY do before main() begins: OpenMP binds the first thread to
// one CPU, on which all other threads and all ranks of the node would then run, too. The program starts again without
// these variables, on all CPUs that they name. Returns if none of them binds this process.
void leave_openmp_places(char** argv);

}  // namespace ringtrain::cpu
