// Compiles every kernel for one type and returns their addresses. nvcc takes long for that. So make compiles this file
// once for each type, all at the same time, and gives the type as RINGTRAIN_TABLE_TYPE: fp32, bf16 or fp16.
#include "backend/cuda/kernels/activation.cuh"
#include "backend/cuda/kernels/compiled.h"
#include "backend/cuda/kernels/flat.cuh"
#include "backend/cuda/kernels/image_input.cuh"
#include "backend/cuda/kernels/loss.cuh"
#include "backend/cuda/kernels/norm.cuh"
#include "backend/cuda/kernels/norm_pool.cuh"
#include "backend/cuda/kernels/pool.cuh"
#include "backend/cuda/kernels/sequence.cuh"
#include "backend/cuda/kernels/update.cuh"

namespace ringtrain::cuda {
namespace {

template <class Arguments>
const void* address(void (*kernel)(Arguments)) {
  return reinterpret_cast<const void*>(kernel);
}

template <bool typed, class T>
constexpr bool exists = typed || sizeof(T) == sizeof(float);

#define RINGTRAIN_KERNEL_CASE(name, typed, ...)                            \
  case Kernel::name:                                                       \
    if constexpr (exists<typed, T>) return address<>(&on_device::name<T>); \
    break;

template <class T>
const void* function(Kernel kernel) {
  switch (kernel) {
    RINGTRAIN_KERNEL_LIST(RINGTRAIN_KERNEL_CASE)
    case Kernel::count:
      break;
  }
  return nullptr;
}

using fp32 = float;
using bf16 = on_device::Bf16;
using fp16 = on_device::Fp16;

}  // namespace

#define RINGTRAIN_DEFINE_TABLE(type)         \
  const void* type##_kernel(Kernel kernel) { \
    return function<type>(kernel);           \
  }
#define RINGTRAIN_DEFINE_TABLE_EXPANDED(type) RINGTRAIN_DEFINE_TABLE(type)
RINGTRAIN_DEFINE_TABLE_EXPANDED(RINGTRAIN_TABLE_TYPE)

}  // namespace ringtrain::cuda
