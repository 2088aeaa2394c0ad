// Sums device vectors with NCCL. All collectives on host memory go to an inner communicator (MPI).
//
// A sum runs in a stream of its own, while the backward pass is still computing. Events connect the two streams: e0
// says that bucket 0 is final, f0 says that its sum has ended.
//
//   compute   ... bucket 0 final |e0  ... bucket 1 final |e1  ... end |wait f0 f1| update
//                                 \                       \            /
//   sums                           wait e0 | sum 0 | f0    wait e1 | sum 1 | f1
//
// The host never waits for a sum. While it waits for the device elsewhere, it calls poll(), which notices errors of
// NCCL and ranks that do not come.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "backend/cuda/device/device.h"
#include "cluster/communicator.h"
#include "cluster/nccl_library.h"

namespace ringtrain {

struct NcclOptions {
  std::string algorithm = "auto";  // ring | tree | auto: NCCL's choice, or NCCL_ALGO if the user has set it
  // The type in which values travel. For 16 bits, each bucket is scaled (set_rounding()) and rounded into a second
  // buffer before the sum, and converted to fp32 after it. Elements that may not be rounded are summed in fp32.
  cuda::Type gradient_type = cuda::Type::fp32;
  // What record() returned at the run's first start. Its NCCL_ variables are set again, unless the user has set them to
  // other values.
  std::map<std::string, std::string> kept = {};
  // Above 0: all sums are added in a binary tree over the ranks (halving_sum()), by messages. A sum may have at most
  // this many elements. 0: NCCL's own sums.
  std::int64_t fixed_order_elements = 0;
  int max_ctas = 0;  // the most GPU blocks that NCCL may use, so that the others can compute; 0: NCCL's choice
  // The limit for the start of NCCL, and for a sum after this rank is ready. It is less than the watchdog's limit,
  // because the watchdog's message does not name the bucket.
  double timeout_seconds = 480;
};

// Collective. `host`, `device` and `api` must outlive the result. Throws Error, on every rank that notices it, if NCCL
// does not start in time or if the environments of the ranks would let them choose different algorithms.
std::unique_ptr<DeviceCommunicator> make_nccl_communicator(const NcclApi& api, cuda::Device& device, Communicator& host,
                                                           const NcclOptions& options);

// Returns the bytes of device memory for values that arrive from other ranks in a fixed order.
std::int64_t nccl_arrival_bytes(std::int64_t fixed_order_elements);

}  // namespace ringtrain
