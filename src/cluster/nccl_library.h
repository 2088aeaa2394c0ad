// A table of NCCL's functions, filled when the library is loaded. The program links without NCCL, and tests can use a
// table of their own. The types stand for those of nccl.h. Only nccl_library.cpp includes nccl.h and compares them.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace ringtrain {

struct NcclComm;  // ncclComm_t is a pointer to one

struct NcclUniqueId {
  char bytes[128];
};

enum class NcclResult : int { success = 0, remote_error = 6, in_progress = 7 };  // all other values are errors
enum class NcclType : int { bytes = 0, fp16 = 6, fp32 = 7, bf16 = 9 };
enum class NcclOperation : int { sum = 0 };

inline std::int64_t bytes_of(NcclType type) {
  return type == NcclType::bytes ? 1 : type == NcclType::fp32 ? 4 : 2;
}

// ncclConfig_t of NCCL 2.18. Newer libraries read only the first `size` bytes and use defaults for the rest.
struct NcclConfig {
  static constexpr int kUndefined = INT_MIN;
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
};

// `stream` is a cudaStream_t.
struct NcclApi {
  NcclResult (*get_version)(int* version) = nullptr;
  NcclResult (*get_unique_id)(NcclUniqueId* id) = nullptr;
  NcclResult (*init_rank)(NcclComm** comm, int ranks, NcclUniqueId id, int rank, NcclConfig* config) = nullptr;
  NcclResult (*finalize)(NcclComm* comm) = nullptr;
  NcclResult (*destroy)(NcclComm* comm) = nullptr;
  NcclResult (*abort)(NcclComm* comm) = nullptr;
  NcclResult (*async_error)(NcclComm* comm, NcclResult* error) = nullptr;
  NcclResult (*all_reduce)(const void* from, void* to, std::size_t count, NcclType type, NcclOperation operation,
                           NcclComm* comm, void* stream) = nullptr;
  NcclResult (*broadcast)(const void* from, void* to, std::size_t count, NcclType type, int root, NcclComm* comm,
                          void* stream) = nullptr;
  NcclResult (*reduce)(const void* from, void* to, std::size_t count, NcclType type, NcclOperation operation, int root,
                       NcclComm* comm, void* stream) = nullptr;
  // `count` is the number of elements of a rank's piece.
  NcclResult (*reduce_scatter)(const void* from, void* to, std::size_t count, NcclType type, NcclOperation operation,
                               NcclComm* comm, void* stream) = nullptr;
  NcclResult (*all_gather)(const void* from, void* to, std::size_t count, NcclType type, NcclComm* comm,
                           void* stream) = nullptr;
  // `peer` is a rank of the communicator. The first message between two ranks connects them and waits for both.
  NcclResult (*send)(const void* from, std::size_t count, NcclType type, int peer, NcclComm* comm,
                     void* stream) = nullptr;
  NcclResult (*receive)(void* to, std::size_t count, NcclType type, int peer, NcclComm* comm, void* stream) = nullptr;
  // Calls between group_start() and group_end() form one collective.
  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
  const char* (*error_text)(NcclResult result) = nullptr;
  const char* (*last_error)(NcclComm* comm) = nullptr;
  // These are null in libraries before 2.19.
  NcclResult (*allocate)(void** memory, std::size_t bytes) = nullptr;
  NcclResult (*release)(void* memory) = nullptr;
  NcclResult (*register_memory)(NcclComm* comm, void* memory, std::size_t bytes, void** handle) = nullptr;
  NcclResult (*deregister)(NcclComm* comm, void* handle) = nullptr;
};

// Turns 22809 into "2.28.9".
inline std::string nccl_version_text(int version) {
  return cat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

}  // namespace ringtrain
