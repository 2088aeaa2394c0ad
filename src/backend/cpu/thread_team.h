// OpenMP may give a parallel region fewer threads than it asks for. The loops here and in oneDNN divide their work
// among the threads that they ask for, so with fewer threads a part of the work would be left out.
#pragma once

namespace ringtrain::cpu {

// Switches off what would let OpenMP choose smaller teams for this thread's parallel regions. Then enters a region with
// `threads` threads and counts them. Throws Error that names the variable in the way when there are fewer.
void expect_threads(int threads);

}  // namespace ringtrain::cpu
