// OpenMP may give a parallel region fewer threads than it asks for. The loops here and in oneDNN divide their work
// among the threads that they ask for, so with fewer threads a part of the work would be left out.
#pragma once

namespace ringtrain::cpu {

// Switches off what would let OpenMP choose smaller teams for this thread's parallel regions. Then enters a region with
// `threads` threads and counts them. Throws Error that names the variable in the way when there are fewer, or the limit
// of the system if a thread cannot be started.
void expect_threads(int threads);

// Undoes what OMP_PROC_BIND, OMP_PLACES and GOMP_CPU_AFFINITY do before main() begins: OpenMP binds the first thread to
// one CPU, on which all other threads and all ranks of the node would then run, too. The program starts again without
// these variables, on all CPUs that they name. Returns if none of them binds this process.
void leave_openmp_places(char** argv);

}  // namespace ringtrain::cpu
