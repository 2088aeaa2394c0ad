#include "backend/cuda/device/cuda_library.h"
#include "cluster/nccl_library.h"

namespace ringtrain {

const NcclApi& nccl_api() {
  return cuda::cuda_library().nccl_api();
}

}  // namespace ringtrain
