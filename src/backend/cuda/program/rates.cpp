#include "backend/cuda/program/rates.h"

#include <algorithm>
#include <string>

namespace ringtrain::cuda {
namespace {

bool has(const std::string& name, const char* part) {
  return name.find(part) != std::string::npos;
}

// `half` has the rates with 16-bit factors.
Rates with_math(const Rates& half, Math math) {
  const double flops = math == Math::half ? half.flops : math == Math::tf32 ? half.flops / 2 : half.flops / 14;
  return {half.bytes, flops, half.is_estimate};
}

}  // namespace

Rates rates_of(int compute_capability, Math math) {
  return with_math(compute_capability >= 100  ? Rates{6e12, 1.5e15}
                   : compute_capability >= 90 ? Rates{3.6e12, 7e14}
                                              : Rates{1.5e12, 2.3e14},
                   math);
}

// The project's maintainers measured the numbers below on such GPUs with PyTorch 2.11: a copy of 8.6 GB (bytes read and
// written), and a bf16 matrix product of 8192 x 8192 x 8192.
Rates rates_of(const DeviceFacts& device, Math math) {
  const std::string& name = device.name;
  if (has(name, " H100 ") && has(name, "HBM3") && !has(name, "MIG")) return with_math({3.0e12, 7.98e14, false}, math);
  if (has(name, " H200") && !has(name, "MIG")) return with_math({4.3e12, 7.9e14, false}, math);
  return rates_of(device.compute_capability, math);
}

double bound_seconds(double flops, double bytes, const Rates& rates) {
  return std::max(flops / rates.flops, bytes / rates.bytes);
}

double host_link_rate(int compute_capability) {
  return compute_capability >= 90 ? 5e10 : 2.3e10;
}

}  // namespace ringtrain::cuda
