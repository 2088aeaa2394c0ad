#include "backend/cpu/isa.h"

#include <cstdlib>

#include "base/error.h"

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

}  // namespace

Isa best_isa() {
  const Isa here = detect();
  const char* wanted = std::getenv("RINGTRAIN_ISA");
  if (wanted == nullptr || *wanted == '\0') return here;
  const std::string w = wanted;
  for (Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512_bf16}) {
    const char* key[] = {"baseline", "avx2", "avx512", "avx512_bf16"};
    if (w != key[static_cast<int>(isa)]) continue;
    if (isa > here)
      throw Error(cat("RINGTRAIN_ISA=", w, ": this CPU has no ", isa_name(isa), ", its best is ", isa_name(here)),
                  "unset RINGTRAIN_ISA");
    return isa;
  }
  throw Error(cat("RINGTRAIN_ISA=", w, " is not one of baseline, avx2, avx512, avx512_bf16"), "unset RINGTRAIN_ISA");
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

}  // namespace ringtrain::cpu
