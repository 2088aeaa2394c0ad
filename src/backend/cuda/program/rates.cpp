#include "backend/cuda/program/rates.h"

namespace ringtrain::cuda {

Rates rates_of(int compute_capability, Math math) {
  const Rates half = compute_capability >= 100  ? Rates{6e12, 1.5e15}
                     : compute_capability >= 90 ? Rates{3.6e12, 7e14}
                                                : Rates{1.5e12, 2.3e14};
  return {half.bytes, math == Math::half ? half.flops : math == Math::tf32 ? half.flops / 2 : half.flops / 14};
}

double host_link_rate(int compute_capability) {
  return compute_capability >= 90 ? 5e10 : 2.3e10;
}

}  // namespace ringtrain::cuda
