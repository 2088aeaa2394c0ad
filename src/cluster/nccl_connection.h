// One communicator of NCCL's whose calls never block: a rank that does not come ends in an error, and abort() works at
// any time.
#pragma once

#include <functional>
#include <string>

#include "cluster/nccl_library.h"

namespace ringtrain {

struct NcclEnd {
  int rank = 0, size = 1;  // of this communicator
  std::string who;         // "rank 3 of 8", in messages
  int max_ctas = 0;        // 0: NCCL's choice
  // For the start, and for a call until it has got through.
  double timeout_seconds = 480;
  // Called while it waits; throws when a rank cannot take part any more.
  std::function<void()> poll = {};
  // Called by abort(), after NCCL has ended.
  std::function<void(const std::string& why)> abort_rest = {};
};

class NcclConnection {
 public:
  // `api` outlives it.
  NcclConnection(const NcclApi& api, NcclEnd end) : api_(api), end_(std::move(end)) {}
  NcclConnection(const NcclConnection&) = delete;
  NcclConnection& operator=(const NcclConnection&) = delete;
  ~NcclConnection();

  // What start() is given on all ranks; made by one of them. Throws Error where no network is found.
  NcclUniqueId make_id();
  // Collective over the communicator's ranks. Throws Error when not all of them come in time. `what`: "the start of NCCL"
  void start(const NcclUniqueId& id, const std::string& what);

  const NcclApi& api() const { return api_; }
  NcclComm* get() const { return comm_; }  // null: aborted, or not started
  // Throws Error unless the call was good or has just begun. `what`: the call, in messages.
  void check(NcclResult result, const std::string& what);
  // Waits until the call has got through. Before that, nothing else may be asked of the communicator or given to the
  // stream.
  void settle(const std::string& what);
  // Throws NCCL's error since the last call, and what poll() throws.
  void look(const std::string& what);
  // Says who and what, then ends NCCL: its kernels would keep the device busy, and giving memory back would wait for
  // them.
  [[noreturn]] void fail(const std::string& what, const std::string& hint);

  bool aborted() const { return aborted_; }
  void abort(const std::string& why);  // throws nothing

 private:
  void poll();
  std::string library_says(NcclResult result);

  const NcclApi& api_;
  NcclEnd end_;
  NcclComm* comm_ = nullptr;
  bool aborted_ = false;
};

}  // namespace ringtrain
