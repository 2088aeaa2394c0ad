// The ranks of a pipeline, and the order in which a rank does the forward and backward passes of a step, with or
// without a pipeline.
//
// Stage s of replica d is rank d x stages + s, so the stages of a replica are neighbours. The ranks of a stage sum the
// stage's gradients over the replicas.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
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

// The order of the passes.

// Callbacks of the trainer for micro-batch `i` of the step. Each of them is called in increasing order of i.
struct PassCalls {
  std::function<void(std::int64_t i)> input;    // provides the input and the targets of micro-batch i
  std::function<void(std::int64_t i)> forward;  // called after input(i)
  std::function<void(std::int64_t i)> backward;
  std::function<void()> waits;  // called before the rank waits for another stage
};

// The seconds of a step in which a stage of a pipeline computes no pass.
struct StageWaits {
  double bubble = 0;    // waiting for activations or gradients of the stage before or after this one
  double boundary = 0;  // giving activations and gradients to the other stages, and waiting until they have them
};

class PassOrder {
 public:
  virtual ~PassOrder() = default;
  // Does the forward and backward pass of every micro-batch of the step. Collective over the ranks of a pipeline.
  virtual void run(std::int64_t micro_batches, const PassCalls& calls) = 0;
  // Returns the times of the last run(). On a device it is called after the passes have ended (Program::take_sums()).
  virtual StageWaits stage_waits() { return {}; }
  // Does one forward pass without a backward pass. `pass` runs the program. `waits` is as in PassCalls.
  virtual void forward(const std::function<void()>& pass, const std::function<void()>& waits) {
    static_cast<void>(waits);
    pass();
  }
};

// One event of a stage: the forward or the backward pass of a micro-batch.
struct StageEvent {
  bool backward = false;
  std::int64_t micro_batch = 0;
  bool operator==(const StageEvent&) const = default;
};

// Returns the events of stage `stage` of `stages` for m micro-batches. The schedule "gpipe" (Huang et al. 2019) does
// all forward passes, then all backward passes. The schedule "1f1b" (Narayanan et al. 2019, PipeDream-Flush) begins
// with stages - 1 - stage forward passes. Then it alternates forward and backward passes.
std::vector<StageEvent> stage_events(const std::string& schedule, std::int64_t stage, std::int64_t stages,
                                     std::int64_t micro_batches);
// Returns the most micro-batches that a stage holds at a time: m with gpipe, and min(stages - stage, m) with 1f1b.
std::int64_t stage_slots(const std::string& schedule, std::int64_t stage, std::int64_t stages,
                         std::int64_t micro_batches);
// Returns the idle share of a stage if all stages are equally fast: (K - 1) / (m + K - 1) for K stages.
double bubble_share(std::int64_t stages, std::int64_t micro_batches);

// If `ranks` is null, each micro-batch has its forward and backward pass in turn. Otherwise `program` is the program of
// a pipeline's stage with `slots` slots. The stage then sends and receives activations and gradients while it computes.
// Each end of the stage has two buffers per direction. While one micro-batch is computed, the next one is received and
// the previous one is sent.
std::unique_ptr<PassOrder> make_pass_order(StageRanks* ranks, Program& program, const std::string& schedule,
                                           std::int64_t slots);
// Returns the bytes of the buffers that a stage's PassOrder takes in the memory of the device that computes.
std::int64_t pass_order_bytes(const PartBytes& bytes);

}  // namespace ringtrain
