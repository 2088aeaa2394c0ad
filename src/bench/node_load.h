// What a rank's cores are worth when it does not have them, or their caches, for itself: states of the node that a
// benchmark makes for as long as these live.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "cluster/communicator.h"
#include "cluster/session.h"
#include "run/plan.h"

namespace ringtrain {

// The CPUs that this rank may use beyond its own threads compute passes of the same kind, so that memory, caches and
// clock are those of a node full of ranks; unless that would take more than half of the free memory. `bytes_each`: what
// one of them takes. Collective.
class NodeLoad {
 public:
  NodeLoad(const Session& session, Communicator& host, const RunPlan& plan, int threads, std::int64_t bytes_each);
  ~NodeLoad();
  NodeLoad(const NodeLoad&) = delete;
  NodeLoad& operator=(const NodeLoad&) = delete;
  bool is_there() const { return is_there_; }  // the same on all ranks: some rank has some

 private:
  std::atomic<bool> ending_{false};
  std::atomic<int> started_{0};
  std::vector<std::thread> threads_;
  bool is_there_ = false;
};

// Ranks 2i and 2i + 1 of each node have half of their cores, so that two threads take turns on each. Collective.
class SharedCores {
 public:
  SharedCores(const Session& session, Communicator& host);
  ~SharedCores();
  SharedCores(const SharedCores&) = delete;
  SharedCores& operator=(const SharedCores&) = delete;
  // The same on all ranks. Not where a node has an odd number of ranks, or they share cores anyway.
  bool are_shared() const { return are_shared_; }

 private:
  std::vector<int> own_;
  bool are_shared_ = false;
};

// The CPUs of the first half of the cores; none if their number is odd. `core_of`: of each CPU, by place.
std::vector<int> half_of_cores(const std::vector<int>& cpus, const std::vector<int>& core_of);

}  // namespace ringtrain
