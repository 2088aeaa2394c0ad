#include "backend/cpu/processor.h"

#include <omp.h>
#include <sched.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <dnnl.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cpu/kernels.h"
#include "base/error.h"
#include "base/system_limits.h"
#include "base/utf8.h"

namespace ringtrain::cpu {
namespace {

Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512cd");
  if (avx512 && __builtin_cpu_supports("avx512bf16")) return Isa::avx512_bf16;
  if (avx512) return Isa::avx512;
  if (avx2) return Isa::avx2;
#endif
  return Isa::baseline;
}

constexpr int level_with_tiles = static_cast<int>(Isa::avx512_bf16) + 1;
int most = level_with_tiles;  // set by lower_instruction_level()

// Returns whether the CPU has AMX for bf16. Since version 5.16, Linux gives AMX to a process that asks. oneDNN asks.
bool has_tiles() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  return (d >> 22 & 1) != 0 && (d >> 24 & 1) != 0;
#else
  return false;
#endif
}

// Returns RINGTRAIN_ISA, or the best set of the CPU if the variable is not set.
Isa wanted_isa() {
  const Isa here = detect();
  const char* wanted = std::getenv("RINGTRAIN_ISA");
  if (wanted == nullptr || *wanted == '\0') return here;
  constexpr std::string_view keys[] = {"baseline", "avx2", "avx512", "avx512_bf16"};
  const auto* found = std::ranges::find(keys, wanted);
  if (found == std::end(keys))
    throw Error(cat("RINGTRAIN_ISA=", wanted, " is not one of ", joined(keys)), "unset RINGTRAIN_ISA");
  const auto isa = static_cast<Isa>(found - keys);
  if (isa > here)
    throw Error(cat("RINGTRAIN_ISA=", wanted, ": this CPU has no ", isa_name(isa), ", its best is ", isa_name(here)),
                "unset RINGTRAIN_ISA");
  return isa;
}

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

Isa best_isa() {
  return static_cast<Isa>(std::min(static_cast<int>(wanted_isa()), most));
}

int instruction_level() {
  const int level = static_cast<int>(best_isa());
  return level + 1 == level_with_tiles && most == level_with_tiles && has_tiles() ? level_with_tiles : level;
}

std::string level_name(int level) {
  if (level == level_with_tiles) return cat(isa_name(Isa::avx512_bf16), " and AMX");
  return isa_name(static_cast<Isa>(level));
}

void lower_instruction_level(int level) {
  most = std::min(most, level);
  if (level >= level_with_tiles || std::getenv("ONEDNN_MAX_CPU_ISA") != nullptr ||
      std::getenv("DNNL_MAX_CPU_ISA") != nullptr)
    return;
  using dnnl::cpu_isa;
  constexpr cpu_isa sets[] = {cpu_isa::sse41, cpu_isa::avx2, cpu_isa::avx512_core, cpu_isa::avx512_core_bf16};
  if (dnnl::set_max_cpu_isa(sets[level]) != dnnl::status::success)
    throw Error(cat("oneDNN cannot be limited to ", level_name(level), ": it has computed before"));
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::baseline:
      return "baseline";
    case Isa::avx2:
      return "AVX2";
    case Isa::avx512:
      return "AVX-512";
    case Isa::avx512_bf16:
      return "AVX-512 BF16";
  }
  return "?";
}

// Chooses one of the copies of the kernel files. There is one copy per instruction set.

#if defined(__x86_64__)
#define RINGTRAIN_CHOOSE(Table, name)                            \
  const Table& name##_baseline();                                \
  const Table& name##_avx2();                                    \
  const Table& name##_avx512();                                  \
  const Table& name##_avx512_bf16();                             \
  const Table& name(Isa isa) {                                   \
    if (isa == Isa::avx512_bf16) return name##_avx512_bf16();    \
    if (isa == Isa::avx512) return name##_avx512();              \
    return isa == Isa::avx2 ? name##_avx2() : name##_baseline(); \
  }
#else
#define RINGTRAIN_CHOOSE(Table, name) \
  const Table& name##_baseline();     \
  const Table& name(Isa) {            \
    return name##_baseline();         \
  }
#endif

RINGTRAIN_CHOOSE(Kernels, kernels)
RINGTRAIN_CHOOSE(NormKernels, norm_kernels)
RINGTRAIN_CHOOSE(ImageKernels, image_kernels)

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
