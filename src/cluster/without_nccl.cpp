// Stands in for NCCL in a program that was built without CUDA.
#include "base/error.h"
#include "cluster/nccl_library.h"

namespace ringtrain {

const NcclApi& nccl_api() {
  throw Error("this ringtrain was built without CUDA, and so without NCCL",
              "build it where nvcc, cuDNN and NCCL are found (make CUDA=1 names what is missing), or choose "
              "communication.library: mpi");
}

}  // namespace ringtrain
