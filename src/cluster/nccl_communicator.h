// Sums of device vectors by NCCL; everything in host memory goes to an inner communicator (MPI).
//
// A sum runs in a stream of its own, beside the backward pass that is still computing:
//
//   compute   ... bucket 0 final |e0  ... bucket 1 final |e1  ... end |wait f0 f1| update
//                                 \                       \            /
//   sums                           wait e0 | sum 0 | f0    wait e1 | sum 1 | f1
//
// The host never waits for a sum. It waits for the device elsewhere and calls poll() meanwhile, which sees NCCL's
// errors and the ranks that do not come.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "backend/cuda/device/device.h"
#include "cluster/communicator.h"
#include "cluster/nccl_library.h"

namespace ringtrain {

struct NcclOptions {
  std::string algorithm = "auto";  // ring | tree | auto: NCCL's choice, or NCCL_ALGO where the user has set it
  // What travels. 16 bit: each bucket is scaled (set_rounding()) and rounded into a second buffer before the sum, and
  // comes back as fp32. Elements that may not be rounded are summed in fp32 where they are.
  cuda::Type gradient_type = cuda::Type::fp32;
  // record() of the run's first start: its NCCL_ variables are taken again where the user sets no others now.
  std::map<std::string, std::string> kept = {};
  // Above 0: sums of at most so many elements are added in a binary tree over the ranks (halving_sum()), by messages.
  std::int64_t fixed_order_elements = 0;
  int max_ctas = 0;  // blocks that NCCL may run, the rest of the GPU computes; 0: NCCL's choice
  // For the start, and for a sum from when this rank's part is ready. Less than the watchdog's, which names no bucket.
  double timeout_seconds = 480;
};

// Collective. `host`, `device` and `api` outlive it. Throws Error, on every rank that sees it, when NCCL does not start
// in time or the ranks' environments would let them choose different algorithms.
std::unique_ptr<DeviceCommunicator> make_nccl_communicator(const NcclApi& api, cuda::Device& device, Communicator& host,
                                                           const NcclOptions& options);

// Device memory for what arrives from other ranks in a fixed order.
std::int64_t nccl_arrival_bytes(std::int64_t fixed_order_elements);
// The device memory that allocate(bytes) takes. NCCL allocates whole pages of 2 MiB.
std::int64_t nccl_vector_bytes(std::int64_t bytes, cuda::Type gradient_type);

}  // namespace ringtrain
