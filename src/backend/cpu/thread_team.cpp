#include "backend/cpu/thread_team.h"

#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/system_limits.h"
#include "base/utf8.h"

namespace ringtrain::cpu {
namespace {

// Returns "OMP_THREAD_LIMIT is 1 and ..." for the variables that are set and may take threads away.
std::string limiting_variables() {
  std::string found;
  for (const char* name : {"OMP_THREAD_LIMIT", "OMP_MAX_ACTIVE_LEVELS", "KMP_DEVICE_THREAD_LIMIT", "KMP_ALL_THREADS"})
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0')
      found += cat(found.empty() ? "" : " and ", name, " is ", value);
  return found;
}

// If OpenMP cannot start a thread, it prints a line without the reason and calls exit().
std::atomic<int> awaited{0};

void report_missing_team() {
  if (awaited == 0) return;
  const std::string text =
      cat("ringtrain: error: OpenMP cannot start the ", awaited.load(),
          " threads of this process: ", limits_of_threads(), "\n  raise that limit, or set run.threads lower\n");
  std::fputs(printable(text).c_str(), stderr);
}

}  // namespace

void expect_threads(int threads) {
  omp_set_dynamic(0);
  omp_set_max_active_levels(std::max(1, omp_get_max_active_levels()));
  expect_room_for_threads(threads - 1, cat("the ", threads, " threads that compute (run.threads)"));
  static const bool is_registered = std::atexit(report_missing_team) == 0;
  if (is_registered) awaited = threads;
  int granted = 1;
#pragma omp parallel num_threads(threads)
#pragma omp single
  granted = omp_get_num_threads();
  awaited = 0;
  if (granted >= threads) return;
  const std::string variables = limiting_variables();
  throw Error(cat("this process needs ", threads, " threads, and OpenMP gives it ", granted,
                  variables.empty() ? "" : ": " + variables),
              cat(variables.empty() ? "Set" : "Unset the variable, or set", " run.threads=", granted, "."));
}

void leave_openmp_places(char** argv) {
  if (omp_get_proc_bind() == omp_proc_bind_false || omp_get_num_places() == 0) return;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::vector<int> cpus(static_cast<std::size_t>(omp_get_place_num_procs(place)));
    omp_get_place_proc_ids(place, cpus.data());
    for (const int cpu : cpus)
      if (cpu < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(cpu), &mask);
  }
  if (sched_setaffinity(0, sizeof mask, &mask) != 0) return;
  for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"}) ::unsetenv(name);
  ::execv("/proc/self/exe", argv);
}

}  // namespace ringtrain::cpu
