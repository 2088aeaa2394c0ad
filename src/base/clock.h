// Elapsed time. The clock is monotonic, so a change of the wall clock does not disturb differences. All processes of a
// machine share its origin, so the ranks of a node can compare times.
#pragma once

#include <time.h>

namespace ringtrain {

// Takes about 20 ns, without a system call (vDSO).
inline double now_seconds() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace ringtrain
