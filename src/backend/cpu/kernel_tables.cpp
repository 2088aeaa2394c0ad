// Chooses one of the copies of the kernel files. There is one copy per instruction set.
#include "backend/cpu/image_kernels.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/norm_kernels.h"

namespace ringtrain::cpu {

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

}  // namespace ringtrain::cpu
