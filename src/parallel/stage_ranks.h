// The ranks of a pipeline. Stage s of replica d is rank d x stages + s, so the stages of a replica are neighbours. The
// ranks of a stage sum the stage's gradients over the replicas.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/communicator.h"
#include "cluster/links.h"
#include "cluster/rank_group.h"
#include "optim/optimizer.h"

namespace ringtrain {

// Functions that connect ranks on devices. They are empty if the ranks compute in host memory.
struct StageDevices {
  // Makes the communicator that sums a device's vectors over the ranks of `host`. Collective over those ranks.
  std::function<std::unique_ptr<DeviceCommunicator>(Communicator& host)> sums;
  // Makes links between devices. `rank` is this rank's number in the group of `host`. `lanes` are all its lanes; those
  // with the previous stage come first. Collective.
  std::function<std::unique_ptr<Links>(Links& host, int rank, std::vector<Lane> lanes)> links;
};

class StageRanks {
 public:
  // Tags of the messages that cross the cuts.
  static constexpr int activations = 1, gradients = 2;

  // Collective over the group, whose size is a multiple of `stages`.
  StageRanks(const RankGroup& group, int stages, std::size_t chunk_bytes, const SumChoice& choice = {},
             const StageDevices& devices = {});

  int stage() const { return stage_; }
  int stages() const { return stages_; }
  int replica() const { return replica_; }
  int replicas() const { return replicas_; }
  bool is_first() const { return stage_ == 0; }
  bool is_last() const { return stage_ + 1 == stages_; }
  int rank_of(int replica, int stage) const { return replica * stages_ + stage; }

  // Sums the gradients of this stage over the replicas, in the memory where the gradients are.
  Communicator& over_replicas() { return device_sums_ ? static_cast<Communicator&>(*device_sums_) : *over_replicas_; }
  DeviceCommunicator* device_sums() { return device_sums_.get(); }  // null: in host memory, or with one replica
  Links& links() { return *links_; }                                // between all ranks of the group, in host memory
  // Links for activations and gradients that cross the cuts. They connect devices if the ranks compute on devices.
  Links& crossings() { return crossings_ ? *crossings_ : *links_; }
  void poll();  // call it while the host waits for a device; throws the error of NCCL
  void abort(const std::string& why);
  // Every rank updates all weights of its stage. Norms are taken over the whole model.
  UpdateShare share();

 private:
  int stage_, stages_, replica_, replicas_;
  std::unique_ptr<Communicator> over_replicas_, over_stages_;
  std::unique_ptr<DeviceCommunicator> device_sums_;
  std::unique_ptr<Links> links_, crossings_;
};

}  // namespace ringtrain
