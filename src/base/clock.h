// Elapsed time. Monotonic, so that differences are right when the wall clock is set; the same origin in all processes
// of a machine, so that ranks of a node can compare.
#pragma once

#include <time.h>

namespace ringtrain {

// About 20 ns, no system call (vDSO).
inline double now_seconds() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace ringtrain
