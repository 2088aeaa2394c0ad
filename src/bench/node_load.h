// Puts the node into a state for a benchmark: all cores are busy, or two ranks run on the same cores. The state ends
// with the object. The benchmark measures how fast a rank is when others use its cores or its caches.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "cluster/communicator.h"
#include "cluster/session.h"
#include "run/plan.h"

namespace ringtrain {

// Loads the node: threads compute passes of the same kind on the CPUs that this rank may use but does not need. Memory
// bandwidth, caches and clock frequency are then as on a node full of ranks. There are no such threads if they would
// take more than half of the free memory. `bytes_each` is the memory of one thread. Throws Error if the system refuses
// a thread. Collective.
class NodeLoad {
 public:
  NodeLoad(const Session& session, Communicator& host, const RunPlan& plan, int threads, std::int64_t bytes_each);
  ~NodeLoad();
  NodeLoad(const NodeLoad&) = delete;
  NodeLoad& operator=(const NodeLoad&) = delete;
  bool is_there() const { return is_there_; }  // whether any rank has such threads; the same on all ranks

 private:
  void end();  // ends all threads
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
  // The same on all ranks. False if a node has an odd number of ranks, if its ranks share cores anyway, or if two ranks
  // together have an odd number of cores.
  bool are_shared() const { return are_shared_; }

 private:
  std::vector<int> own_;
  bool are_shared_ = false;
};

// Returns the CPUs of the first half of the cores, or nothing if the number of cores is odd. `core_of` has the core of
// each CPU, at the same index.
std::vector<int> half_of_cores(const std::vector<int>& cpus, const std::vector<int>& core_of);

}  // namespace ringtrain
