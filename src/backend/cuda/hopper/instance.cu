// One kernel of the library. A kernel takes half a minute to compile. So make compiles this file once for each name in
// RINGTRAIN_HOPPER_INSTANCES, all at the same time, and gives the name as RINGTRAIN_HOPPER_INSTANCE.
#include "backend/cuda/hopper/convolution.cuh"
#include "backend/cuda/hopper/weight_gradient.cuh"

namespace ringtrain::cuda::hopper {

// The names of all kernels cost no time. Only a kernel whose instance() is called is compiled.
#define RINGTRAIN_NAME_OF_KERNEL(name, ...) using name##_kernel = __VA_ARGS__;
RINGTRAIN_HOPPER_INSTANCES(RINGTRAIN_NAME_OF_KERNEL)

#define RINGTRAIN_DEFINE(name)             \
  Instance name() {                        \
    return name##_kernel::instance(#name); \
  }
#define RINGTRAIN_DEFINE_EXPANDED(name) RINGTRAIN_DEFINE(name)
RINGTRAIN_DEFINE_EXPANDED(RINGTRAIN_HOPPER_INSTANCE)

}  // namespace ringtrain::cuda::hopper
