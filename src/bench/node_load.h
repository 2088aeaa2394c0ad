// Puts the node into a state for a benchmark: all cores busy, or two ranks on the same cores. The state ends with the
// object. The benchmark so measures what a rank's cores are worth when others use them or their caches.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "cluster/communicator.h"
#include "cluster/session.h"
#include "run/plan.h"

namespace ringtrain {

// Threads on the CPUs that this rank may use but does not need compute passes of the same kind. Memory, caches and
// clock are then those of a node full of ranks. No such threads run if they would take more than half of the free
// memory. `bytes_each` is the memory of one of them. Collective.
class NodeLoad {
 public:
  NodeLoad(const Session& session, Communicator& host, const RunPlan& plan, int threads, std::int64_t bytes_each);
  ~NodeLoad();
  NodeLoad(const NodeLoad&) = delete;
  NodeLoad& operator=(const NodeLoad&) = delete;
  bool is_there() const { return is_there_; }  // the same on all ranks: whether any rank has such threads

 private:
  std::atomic<bool> ending_{false};
  std::atomic<int> started_{0};
  std::vector<std::thread> threads_;
  bool is_there_ = false;
};

// Binds ranks 2i and 2i + 1 of each node to half of their cores, so that two threads take turns on each. Collective.
class SharedCores {
 public:
  SharedCores(const Session& session, Communicator& host);
  ~SharedCores();
  SharedCores(const SharedCores&) = delete;
  SharedCores& operator=(const SharedCores&) = delete;
  // The same on all ranks. False if a node has an odd number of ranks, or if its ranks share cores anyway.
  bool are_shared() const { return are_shared_; }

 private:
  std::vector<int> own_;
  bool are_shared_ = false;
};

// Returns the CPUs of the first half of the cores, or nothing if the number of cores is odd. `core_of` has the core of
// each CPU, at the same index.
std::vector<int> half_of_cores(const std::vector<int>& cpus, const std::vector<int>& core_of);

}  // namespace ringtrain
