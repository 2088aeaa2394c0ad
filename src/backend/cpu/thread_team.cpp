#include "backend/cpu/thread_team.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/error.h"

namespace ringtrain::cpu {
namespace {

// Returns "OMP_THREAD_LIMIT is 1 and ..." for the variables that are set and may take threads away.
std::string limiting_variables() {
  std::string found;
  for (const char* name : {"OMP_THREAD_LIMIT", "OMP_MAX_ACTIVE_LEVELS"})
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0')
      found += cat(found.empty() ? "" : " and ", name, " is ", value);
  return found;
}

}  // namespace

void expect_threads(int threads) {
  omp_set_dynamic(0);
  omp_set_max_active_levels(std::max(1, omp_get_max_active_levels()));
  int granted = 1;
#pragma omp parallel num_threads(threads)
#pragma omp single
  granted = omp_get_num_threads();
  if (granted >= threads) return;
  const std::string variables = limiting_variables();
  throw Error(cat("this process needs ", threads, " threads, and OpenMP gives it ", granted,
                  variables.empty() ? "" : ": " + variables),
              cat(variables.empty() ? "Set" : "Unset the variable, or set", " run.threads=", granted, "."));
}

}  // namespace ringtrain::cpu
