#include "cluster/nccl_library.h"

#include <dlfcn.h>
#include <nccl.h>

#include "backend/cuda/device/libraries.h"
#include "base/error.h"

namespace ringtrain {
namespace {

constexpr int kOldest = 21800;  // NcclConfig is the struct of this version

// Values of the table's types are passed to functions that were compiled with the types of nccl.h.
static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));
static_assert(static_cast<int>(NcclResult::success) == ncclSuccess);
static_assert(static_cast<int>(NcclResult::remote_error) == ncclRemoteError);
static_assert(static_cast<int>(NcclResult::in_progress) == ncclInProgress);
static_assert(static_cast<int>(NcclType::bytes) == ncclInt8);
static_assert(static_cast<int>(NcclType::fp16) == ncclFloat16);
static_assert(static_cast<int>(NcclType::fp32) == ncclFloat32);
static_assert(static_cast<int>(NcclType::bf16) == ncclBfloat16);
static_assert(static_cast<int>(NcclOperation::sum) == ncclSum);
static_assert(sizeof(ncclResult_t) == sizeof(NcclResult) && sizeof(ncclDataType_t) == sizeof(NcclType));
static_assert(offsetof(NcclConfig, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(NcclConfig, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(NcclConfig, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(NcclConfig, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize));
static_assert(offsetof(NcclConfig, min_ctas) == offsetof(ncclConfig_t, minCTAs));
static_assert(offsetof(NcclConfig, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(NcclConfig, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(NcclConfig, split_share) == offsetof(ncclConfig_t, splitShare));
static_assert(NcclConfig::kUndefined == NCCL_CONFIG_UNDEF_INT);

template <class Function>
void find(void* library, const char* name, Function& function, bool needed = true) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr && needed)
    throw Error(cat("the NCCL that was loaded has no ", name),
                cat("install NCCL ", nccl_version_text(kOldest), " or newer, or choose communication.library: mpi"));
}

NcclApi load() {
  void* library = cuda::nccl_library();
  NcclApi api;
  find(library, "ncclGetVersion", api.get_version);
  int version = 0;
  api.get_version(&version);
  if (version < kOldest)
    throw Error(cat("NCCL ", nccl_version_text(version), " is too old"),
                cat("install NCCL ", nccl_version_text(kOldest), " or newer, or choose communication.library: mpi"));
  find(library, "ncclGetUniqueId", api.get_unique_id);
  find(library, "ncclCommInitRankConfig", api.init_rank);
  find(library, "ncclCommFinalize", api.finalize);
  find(library, "ncclCommDestroy", api.destroy);
  find(library, "ncclCommAbort", api.abort);
  find(library, "ncclCommGetAsyncError", api.async_error);
  find(library, "ncclAllReduce", api.all_reduce);
  find(library, "ncclBroadcast", api.broadcast);
  find(library, "ncclReduce", api.reduce);
  find(library, "ncclReduceScatter", api.reduce_scatter);
  find(library, "ncclAllGather", api.all_gather);
  find(library, "ncclSend", api.send);
  find(library, "ncclRecv", api.receive);
  find(library, "ncclGroupStart", api.group_start);
  find(library, "ncclGroupEnd", api.group_end);
  find(library, "ncclGetErrorString", api.error_text);
  find(library, "ncclGetLastError", api.last_error);
  find(library, "ncclMemAlloc", api.allocate, false);
  find(library, "ncclMemFree", api.release, false);
  find(library, "ncclCommRegister", api.register_memory, false);
  find(library, "ncclCommDeregister", api.deregister, false);
  return api;
}

}  // namespace

const NcclApi& cuda::runtime::nccl_api() {
  static const NcclApi api = load();
  return api;
}

}  // namespace ringtrain
