#include "tests/emulation/emulated_kernels.h"

#include "tests/emulation/cuda_emulation.h"
// These headers hold the kernels. They must come after the definitions of CUDA's keywords.
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
#include "base/error.h"

namespace ringtrain::cuda {

namespace {

thread_local bool backwards_ = false;

// Returns whether the kernel has barriers or shuffles.
bool needs_fibers(Kernel kernel) {
  switch (kernel) {
    case Kernel::image_input:
    case Kernel::norm_sums:
    case Kernel::norm_join_channels:
    case Kernel::norm_finalize:
    case Kernel::norm_backward_sums:
    case Kernel::norm_backward_finalize:
    case Kernel::norm_pool_backward_sums:
    case Kernel::column_sum_parts:
    case Kernel::column_sums:
    case Kernel::reorder:
    case Kernel::cross_entropy:
    case Kernel::copy_tensors_in:
    case Kernel::copy_tensors_home:
    case Kernel::squared_norm_parts:
    case Kernel::squared_norms:
    case Kernel::checksum_parts:
    case Kernel::norm_total:
    case Kernel::update_scalars:
    case Kernel::lamb_moments:
    case Kernel::update:
      return true;
    default:
      return false;
  }
}

template <class Arguments>
void run(void (*kernel)(Arguments), const KernelLaunch& launch) {
  if (launch.argument_bytes != sizeof(Arguments))
    throw Error(cat("kernel ", kernel_name(launch.kernel), " takes ", sizeof(Arguments), " bytes of arguments, not ",
                    launch.argument_bytes));
  Arguments arguments;
  std::memcpy(&arguments, launch.arguments.data(), sizeof(arguments));
  const LaunchShape& s = launch.shape;
  emulated::run_grid({s.grid_x, s.grid_y, s.grid_z}, s.block, needs_fibers(launch.kernel), backwards_,
                     [&] { kernel(arguments); });
}

template <bool typed, class T>
constexpr bool exists = typed || sizeof(T) == sizeof(float);

#define RINGTRAIN_KERNEL_CASE(name, typed, ...)                                   \
  case Kernel::name:                                                              \
    if constexpr (exists<typed, T>) return run(&emulated::name<T>, launch), true; \
    break;

template <class T>
bool run_as(const KernelLaunch& launch) {
  switch (launch.kernel) {
    RINGTRAIN_KERNEL_LIST(RINGTRAIN_KERNEL_CASE)
    case Kernel::count:
      break;
  }
  return false;
}

}  // namespace

void run_emulated(const KernelLaunch& launch) {
  const bool found = launch.type == Type::fp32   ? run_as<float>(launch)
                     : launch.type == Type::bf16 ? run_as<emulated::Bf16>(launch)
                                                 : run_as<emulated::Fp16>(launch);
  if (!found) throw Error(cat("there is no kernel ", kernel_name(launch.kernel), " for ", type_name(launch.type)));
}

void emulate_backwards(bool backwards) {
  backwards_ = backwards;
}

}  // namespace ringtrain::cuda
